"""One module a group of commands: parse, call a step, print."""
