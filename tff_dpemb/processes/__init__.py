"""Child processes that never outlive their program."""
