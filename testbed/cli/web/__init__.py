"""View of a running cluster in a browser: `testbed top --web`.

It has the panels of the terminal's view; actions are commands of `testbed`, started as by a user. Only this package imports
Starlette and uvicorn, which the extra `[web]` installs.
"""
