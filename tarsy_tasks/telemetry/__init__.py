"""What operators read: audit, metrics, history, health records and probes.

audit            one entry for each call that has ended
metrics          of each server and tool; `counting` adds them up, `prometheus` writes them for Prometheus
health_records   the health of servers, according to all workers; `history` is their last hour
probes           whether a worker on this machine is ready, and alive
limit_report     what the limits of calls are, and how far they are used
running_calls, server_log   the calls that run, and the latest lines of each server
approval_links, decision_texts   links to parked calls, and decisions about them in words
shown_arguments, printable   arguments and texts as they are shown
outage_log       logs what fails again and again only twice
"""
