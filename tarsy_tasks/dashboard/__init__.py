"""What the project adds to Flower.

`installation` adds it, before Flower starts, and makes the Broker tab work with our transport. `pages` answers requests
for pages and JSON, `actions` those of buttons.
What they show is read from Redis:

    reader         threads and connections, and the state that was read last
    snapshot       all servers at one moment
    recent_calls   the latest audit entries
    tools          the tools of one server

It becomes HTML with `page_templates`, `formats` and `plots`, or JSON with `describe`. In Flower's own pages,
`task_list` shows tool calls under their names and without arguments, and `metrics` adds the workers' metrics to
`/metrics`.
"""
