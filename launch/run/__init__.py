"""What the steps of a run share: its directory, stamps and ledger."""
