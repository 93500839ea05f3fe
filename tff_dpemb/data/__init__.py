"""Images owned by users: stores, cohorts and the sources that fill them."""
