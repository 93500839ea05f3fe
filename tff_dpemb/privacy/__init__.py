"""What is promised to users, and what it has cost so far.

A `planning.plan.PrivacyPlan` says what will run and how it is accounted; the `ledger`
records each noise draw before its result can be used; a `certificate` states
the guarantee of one released artefact so that anyone can check it.
"""
