"""From a released mixture to usable data: samples, classes, a small net."""
