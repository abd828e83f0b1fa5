"""Faults under load: what is done to workers, Redis, the network and the servers while 64 calls are in flight, and what
has to hold all the same.

    rows_*.py        one function a fault; `rows` is their list
    stage.py         the deployment that a row plays on: Valkey, workers, beat, Flower
    load.py          the calls in flight, how each was answered, and what the servers' ledgers say about it
    test_faults.py   the short form: short leases and faults, part of the test suite
    __main__.py      the long form: `python -m tests.chaos` prints the table; `--soak MINUTES` of random faults
    breaks.py        each row fails when its mechanism is taken out: `python -m tests.chaos.breaks`
"""
