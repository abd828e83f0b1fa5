"""What the project adds to Flower.

`installation` adds it, before Flower starts, and makes the Broker tab work with our transport. `access` says who may
open Flower, `redis_clients` has its other connections to Redis, `ending` ends it while Redis is away. `page_handlers`
is what all pages have in common; `pages`, `call_pages`, `event_pages` and `inbox_pages` answer requests for pages and
JSON, `actions` those of buttons. What they show is read from Redis:

    reader         threads and connections, and the state that was read last
    snapshot       all servers at one moment
    recent_calls   the latest audit entries; `call_filter` reads which of them an address asks for
    tools          the tools of one server
    alerts         the alerts of all servers
    dead_letters   which calls are dead letters
    waterfall      the steps of one call as bars
    limits         the limits of one server, and how far they are used
    remedies       what an operator does about an error code
    answer_form    the form that answers what a server asks

It becomes HTML with `page_templates`, `formats` and `plots`, or JSON with `describe`. In Flower's own pages,
`task_list` shows tool calls under their names and without arguments, and `metrics` adds the workers' metrics to
`/metrics`.
"""
