"""The Celery worker: its pool, consumer, requests, leases, start and stop."""
