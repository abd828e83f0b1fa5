"""What a worker reports: audit, metrics, health, alerts and its life.

call_record        what is known of one call, from its message to its ending
audit_writer, audit_file   an audit entry for every call, in Redis and in a file
call_metrics, metrics_server   counting calls; a worker's own numbers for Prometheus
health_checks, health_writer   the health of the servers, and its records in Redis
session_watch, tool_changes, server_lines   what happens to sessions, what servers list differently, and their log lines
alerts, approval_requests, webhook   notices of failed servers and of calls that wait for an approval
running_report, liveness_files   what the worker runs, and that it is alive
lifecycle          starts and stops all that
log_masking        keeps secrets and control characters out of the logs
"""
