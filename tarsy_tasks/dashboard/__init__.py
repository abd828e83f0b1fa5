"""What the project adds to Flower.

`installation` puts it there, before Flower starts. What answers an address is in `pages`, and in `actions` for the
buttons; what they show comes from Redis:

    dashboard      the threads that read, and what was last known
    snapshot       all servers at one moment
    recent_calls   the latest entries of the audit
    tools          the tools of one server
    server_list    which servers, in which order

and becomes HTML with `page_templates`, `formats`, `plots` and `assets`, or JSON with `describe`. In Flower's own pages
`task_list` and `task_events` change how tool calls are shown and what is taken in of them, `broker_tab` mends the tab
of queues, and `metrics` adds the workers' numbers to `/metrics`.
"""
