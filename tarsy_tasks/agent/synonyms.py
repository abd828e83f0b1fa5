"""Words of the search for tools: which ones mean the same, and which ones say nothing.

Owns the rows. They are general English and terms that many servers share; none is about one server's tools. Words of a
row count for each other, in their inflected forms, too.
"""

__all__ = ["EXPANSIONS", "STOP_WORDS", "SYNONYMS"]

_ROWS = """
create, new, make, add, insert, write, set up, generate, build
create, open, file, raise, register, start
create, run, install, deploy, launch, spin up
delete, remove, erase, drop, destroy, wipe, purge, clear, rid, discard, throw away, trash, uninstall, teardown, unset
delete, close, forget, clean
update, edit, change, modify, alter, adjust, patch, set, fix, correct, replace
update, upgrade, refresh, renew, sync, latest
get, fetch, read, retrieve, show, view, display, see, inspect, describe, detail, details, info, information, look
get, return, pull, give, tell, load
check, verify, validate, lint, test, audit, is valid, correct
search, find, look up, lookup, locate, discover, seek, where, query
list, enumerate, overview, browse, all, show
run, execute, start, launch, trigger, invoke, kick off, perform, exec, call
stop, cancel, abort, kill, terminate, end, shut down, halt, quit, close, interrupt, exit
start, begin, open
restart, rerun, retry, reboot, again, relaunch, redo, repeat
send, post, publish, message, notify, announce, tell, submit
reply, answer, respond, response
comment, note, remark, discussion, feedback, review, annotation
move, rename, relocate, transfer, reorganize
copy, clone, duplicate, fork
upload, attach, attachment
download, export, save, dump
save, store, write, keep, persist, remember, memorize, record
append, add, push
merge, combine, join
approve, accept, approval, sign off
unapprove, revoke, withdraw, take back
revert, undo, rollback, roll back, restore, back out, downgrade
reset, unstage, clear
pause, suspend, hold, freeze, shut down, disable
resume, restore, unpause, continue, bring back, enable
scale, replicas, resize, size, copies, grow, shrink, bigger, smaller
upgrade, bigger, larger, scale
compare, diff, difference, differences, changes, changed, delta
log, logs, output, trace, history
history, log, past, previous, earlier
event, events, activity, happened, warnings
error, errors, failure, failed, fail, problem, wrong, broken, crash, exception, bug
issue, ticket, bug, problem, task, story
pull request, pr, prs, merge request, mr, mrs
repository, repo, repos, project
branch, feature branch
directory, folder, directories, folders, path
file, files, document, doc, docs
image, picture, photo, png, jpg, jpeg, screenshot, graphic, media
video, recording, screencast, film
screenshot, capture, snapshot, looks, appearance
pdf, docx, document
page, site, website, web, webpage, url, link
web, internet, online, news
crawl, spider, scrape, extract
monitor, watch, track, observe, alert
alert, alarm, warning, notification, advisory, incident
browser, chrome, tab, window, page
click, press, tap, push button, hit
type, enter, fill, input, key in
key, keyboard, shortcut
select, choose, pick, switch, dropdown
switch, checkout, change
dialog, popup, alert, prompt, modal
element, button, link, field
dark, light, theme, color scheme, emulate
style, styles, css, font, color, layout
network, request, requests, traffic, api calls
console, javascript, js
performance, slow, fast, speed, latency, optimize
memory, heap, leak, ram
user, users, person, people, member, members, account, colleague, who, team
whoami, authenticated user, me, myself, self, logged in
channel, room, chat, conversation
message, messages, chat
reaction, emoji, like, thumbs
permission, permissions, access, allow, allowed, rights, may, grant
access list, whitelist, firewall, ip
protect, lock, guard, forbid, restrict, secure
security, secure, vulnerability, safe
key, token, secret, credential, password
label, tag, category
link, relation, connect, relate, reference, works for, knows
entity, fact, person, thing
observation, fact, note
kubernetes, k8s, kube, cluster
pod, pods, container, containers
deployment, workload, service, resource, resources
resource, object, manifest, yaml, configmap, secret, deployment, ingress
namespace, environment
node, host, machine, server
chart, helm, release
command, shell, terminal, bash, console, script, program
process, program, task, job, application
session, terminal
application, app, apps
database, db, databases
table, tables, rows, columns
collection, table
document, record, row, entry
column, field, schema, ddl, migration
schema, structure, fields, columns, types, shape
sql, query, select
index, indexes, indices
count, number, how many, amount, total, length
size, space, big, large, bytes, storage, disk
storage, bucket, blob
cost, price, expensive, pay, bill, usage
usage, consumption, consume, utilization, use
cpu, processor, load
status, state, progress, health, finished, done, ready
config, configuration, setting, settings, preferences, options
build, pipeline, ci, job, workflow
pipeline, ci, build, workflow
test, tests, spec
flaky, intermittent, unstable, sometimes, unreliable
artifact, artifacts, binary, output files
version, release, revision
commit, commits, revision, changeset
stage, staged, staging, index
blame, author, wrote, who changed
time, clock, hour, date
timezone, time zone, zone
place, places, location, address, restaurant, shop, nearby, business
coordinates, latitude, longitude, position, gps
directions, route, way, drive, walk, navigate, travel
distance, far, travel time
elevation, altitude, height
navigate, go to, open, visit, browse, url
paper, papers, article, publication, science, scientific, study
research, investigate, report, study, analysis
expire, expiration, ttl, timeout, expiry
list, queue
left, first, head, front, beginning, start
right, last, tail, end, back
set, unique
sorted set, ranking, leaderboard, score
hash, map, dictionary, fields
stream, log, queue
pub, publish, broadcast
subscribe, listen, follow
vector, embedding, semantic, similarity, nearest
iteration, sprint, cycle, milestone
todo, todos, to-do, task, tasks, assigned
assigned, mine, my
group, team, organization, org, organisation
visibility, public, private
discussion, thread, conversation
draft, pending, unpublished
wiki, page, knowledge, notes, documentation
code, source
function, lambda, serverless
output, print, stdout, result, printed
finish, complete, completed, done, end
stuck, hang, frozen, unresponsive
health, healthy, unhealthy, degraded, down, status
content, contents, text, body
computer, machine, laptop, pc, local, device
email, mail, inbox
calendar, meeting, appointment, schedule
schedule, recurring, cron, periodic
customer, client, contact, lead
invoice, payment, charge, receipt
order, purchase, sale
product, item, article
weather, forecast, temperature
chart, graph, plot, diagram, visualization, dashboard
metric, metrics, measurement, statistics, stats
translate, translation, language
summary, summarize, brief
duration, time, period
login, sign in, authenticate, credentials
current, now, today, latest, live
all, every, whole, entire, everything, complete
recent, latest, newest, last
connect, attach, link, join
connection, connections, client, connected
job, task, work
backup, snapshot, copy
binary, file, executable
large, big, huge, long
import, load, ingest, seed
form, survey, application form
spreadsheet, sheet, excel, csv
dependency, package, library, module
secret, password, sensitive
replace, overwrite, substitute
filter, where, condition, matching
sort, order
group by, aggregate, statistics, summarize
mouse, cursor, pointer, hover
mobile, phone, iphone, android, tablet, smartphone, device, emulate
menu, dropdown, select, option
box, field, input, textbox
tab, page, window
screen, screencast, screenshot, display
google, search, web, internet
article, blog, post, page, web
site, shop, store, website
accessibility, accessible, a11y, seo
street, address, city, town, country, location, place
hotel, restaurant, cafe, bar, museum, shop, place, places
airport, station, drive, driving, directions, travel
phone number, opening hours, rating, reviews, details
sea level, mountain, hill, elevation, height
noon, midnight, morning, evening, am, pm, clock, time, hour
tomorrow, yesterday, today, week, date
timezone, city
ping, notify, message, tell, inform
everybody, everyone, team, channel
remark, comment, note
settled, resolved, resolve, done, closed, fixed
block, depend, link, relate
reopen, close, update, state
merge, land
review, feedback, request changes
reviewer, approver, approve
uncommitted, unstaged, working tree, working directory
stash, shelve
differ, difference, diff, compare
lately, recently, recent, last, latest
happened, history, log, event, activity
touch, change, changed, affect, modify
touched, changed, modified
red, failed, failing, failure, broken
green, passed, passing, success, succeeded, status
pass, status, result, results
reason, cause, explain, why, failure
once more, again, rerun, retry
out of sync, sync, drift
push out, deploy, sync, release, ship
ship, release, deploy, publish
rollout, deploy, deployment, release
take down, delete, remove, stop, uninstall
go away, delete, remove
throw, delete, discard
kill, delete
empty, clear, truncate, purge, delete
blank, empty
busy, load, utilization, top, usage, consumption
heavy, usage, top, consumption
machine, node, host, instance
replica, replicas, instance, scale
small, scale, upgrade, resize
faster, performance, index, optimize
speed up, optimize, index, performance
lookup, index, query
sum, total, aggregate, count
average, mean, aggregate, statistics
per month, per day, aggregate, group
sales, revenue, order
try, test, sandbox, branch, experiment
playground, sandbox, development
sample, example, demo, test
free, trial
cloud, hosted, remote
paragraph, text, block, content
bullet, block, list item
under, parent, child, nested
doc, document, page
value, key, field
cache, redis, key
scoreboard, leaderboard, ranking, score, sorted set
top, highest, ranking, range, most
member, element, item, value
contain, include, exist, member
exist, exists, present, available
connected, client, clients, connection
signed up, registered, user
profile, email, user
enable, activate, switch on, restore
went wrong, error, failed, failure, logs, log
trouble, problem, error, issue
investigate, debug, troubleshoot, diagnose, analyze
debug, logs, log
analyze, analysis, insight, inspect
think, reason, plan
plan, schedule, roadmap
inform, notify, send
mind, memory, remember, observation
boss, friend, colleague, wife, husband, person, entity
called, named, name
likes, prefers, wants, fact, observation
about, information, details
know, knowledge, information, memory
learn, remember, memory
recall, remember, memory, search
question, ask, query, answer
program, application, process
terminal, session, process
yes, confirm, accept, answer
confirm, verify, acknowledge
ack, acknowledge, confirm
photo, photos, pictures, image
music, audio, sound, song, media
movie, video, media
zip, archive, compress
overview, tree, list, summary
tree, hierarchy, nested, recursive
owner, author, permissions
modified, changed, updated, metadata
property, properties, attribute, attributes, field
metadata, info, information, attributes, properties
rule, rules, policy
limit, quota, rate
quota, usage, limit
bill, cost, usage
advice, advisor, recommendation, recommendations, suggestion, tip
recommend, suggest, advise
hint, tip, advice
vulnerable, vulnerability, security, advisory
safe, secure, security
encrypt, secret, secure
login, password, credentials, user
grant, allow, permission, access
let, allow, permit, access, allowed, permitted
forbid, deny, block, protect
private, internal, hidden, visibility
public, visible, visibility, published
certificate, tls, ssl
domain, dns, url
address, url, ip
port, network
queue, stream, list, messages
enqueue, push, add
dequeue, pop, remove
broadcast, publish, send
chat, message, channel, slack
emoji, reaction, smiley, thumbs up
react, reaction
spelling, text
sentence, text, content
paste, insert, write
attach, upload, add
put, set, add, insert, write, place
keep, store, save
take, get, pop, fetch
bring, get, fetch
look into, inspect, investigate, analyze
watch, observe, follow, monitor
follow, subscribe, watch
unfollow, unsubscribe
png, jpg, image, media, picture
docx, xlsx, pptx, pdf, word, parse
pull out, extract, parse
attachment, upload, file
stage, add, staging
uncommitted, staged, unstaged, status
develop, development, branch
value, content, get
rows, records, entries, documents, query, data
data, query, records, information
table, database, data
dataset, data, table, sample
wrong, error, failed, failure, events, logs
down, unavailable, failing, status, health
up, running, status, health
print, output, log, logs
says, writes, logs, output
copies, replicas, scale
instances, replicas, scale
computer, laptop, disk, file, local
home, folder, directory
note, notes, file, text, page
report, document, research, summary
chapter, section, block, heading
heading, title, headline, name
title, name, subject
caption, title, label
headline, title, news
mail, email, message, send
invite, add, member
kick, remove, member
colleagues, members, users, team, people
login, user, account
rights, permissions, access, role
role, permission, access
admin, owner, administrator
job, queue, task, message
worker, consumer, process
lock, protect, protected
undo, reset, discard
go back, back, previous, undo
redo, again, repeat
reload, refresh, navigate
forward, next
scroll, page down
swipe, drag
pull, drag, move
mute, silence, alert
quiet, silence
wake, resume, start
sleep, pause, suspend
turn off, pause, stop, disable
slow, slowly, performance, explain, trace, profile
lag, latency, slow, performance
profile, profiling, performance, trace
bottleneck, performance, trace
heap, memory, leak
hot, cpu, usage, top
full, disk, storage, size
cheap, cost, price
plan, cost, subscription
subscription, plan, organization
workspace, organization, users, team
customers, users, records
signup, users, register
phone, number, contact, details
near, nearby, around, places, search
far, distance
fastest, directions, route
map, maps, location, geocode
lat, latitude, lng, longitude, coordinates
postcode, zip code, address
convert, conversion, translate, transform
transform, convert, change
format, convert, style
interface, api, schema
api key, key, publishable, token
migrate, migration, schema
alter, migration, schema, ddl
foreign key, constraint, schema
backup, export, dump
restore, import, backup
clone, copy, fork
star, watch, like
library, package, repository
readme, file, contents
docs, documentation, readme
changelog, history, commits, release
diff, changes, changed files
patch, diff, changes
conflict, conflicts, merge
rebase, update, branch
answer, reply, replies
unread, recent, messages
latest messages, history
conversation, history, thread, messages
dm, message, direct message
""".strip()

SYNONYMS = tuple(tuple(map(str.strip, row.split(","))) for row in _ROWS.splitlines())

EXPANSIONS = {
    "cfg": "configuration",
    "config": "configuration",
    "conf": "configuration",
    "db": "database",
    "dir": "directory",
    "docs": "documentation",
    "env": "environment",
    "gh": "github",
    "img": "image",
    "k8s": "kubernetes",
    "mr": "merge request",
    "mrs": "merge request",
    "msg": "message",
    "ns": "namespace",
    "org": "organization",
    "perf": "performance",
    "pic": "image",
    "pr": "pull request",
    "prs": "pull request",
    "repo": "repository",
    "repos": "repository",
    "svc": "service",
    "all": "list",
    "which": "list",
    "are there": "list",
    "do i have": "list",
    "do we have": "list",
    "do we use": "list",
    "ask": "query",
    "google": "web search",
    "news": "web search current",
    "where": "find search location",
    "who": "user author member",
    "why": "logs events failure explain",
    "by accident": "revert undo restore",
    "doing": "status",
    "does not work": "error failure logs",
    "go back": "back previous revert",
    "went wrong": "error failure logs",
    "what happened": "events history log",
    "what is in": "list read contents",
    "s in": "list read contents",
    "keep in mind": "remember store",
    "look at": "view read show",
    "last week": "history recent",
    "right now": "current status",
    "how much": "amount usage cost",
    "how late": "current time",
    "get rid of": "delete",
    "go to": "navigate switch checkout",
    "how big": "size",
    "how far": "distance",
    "how large": "size",
    "how long": "duration",
    "how many": "count number",
    "how often": "count frequency",
    "how slow": "performance latency",
    "log in": "login",
    "look for": "search",
    "look up": "search",
    "set up": "create",
    "shut down": "stop",
    "sign in": "login",
    "sign up": "register",
    "switch off": "disable stop",
    "switch on": "enable start",
    "take back": "revoke undo",
    "turn off": "disable stop",
    "turn on": "enable start",
    "not work": "error failure logs",
    "what time": "current time",
    "when is": "time",
    "who am i": "current user",
    "who wrote": "author",
}
"""What a query has besides: for words that are short for others, and for phrases of words that say nothing alone."""

STOP_WORDS = frozenset(
    """
    a about again also am an and any are as at be been but by can could did do does done for from had has have he
    her here his how i if in into is it its just let like many me more most much my no not of off on one or our out
    over please s she so some such t than that the their them then there these they this those to too up us very want
    was we were what when where which while who why will with would yet you your
    """.split()
)
