"""Child processes that never outlive their program, and who is alive."""
