#!/bin/bash

# setup
export PYTHONSAFEPATH=1
export PYTHONPATH=/shared/runs/code/0123456789abcdef${PYTHONPATH:+:$PYTHONPATH}

# command
exec /shared/env/bin/python -P -m launchers.local_session /shared/runs/20260131-120000-demo-a1b2c3
