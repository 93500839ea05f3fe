"""The audits of a run: what is attacked, and a lower bound on epsilon.

An audited run is a run of its own. It publishes nothing, its model is thrown
away, and (membership apart) it reads no private image, so it costs no budget.
"""
