"""Studies: many independent runs over a space of parameters, side by side on an engine, resumable.

    study = Study.load("loss.toml")
    outcomes = run_study(study, folder, engine=Processes())

A study's file says what all its runs share and what varies. Each combination is a *point*: one run, with one set of rows.
"""
