"""Studies: many independent runs over a parameter space, in parallel on an engine, resumable.

    study = Study.load("loss.toml")
    outcomes = run_study(study, folder, engine=ProcessEngine())

A study's file has the parameters that all its runs share and those that vary. Each combination is a *point*: one run, with
its rows.
"""
