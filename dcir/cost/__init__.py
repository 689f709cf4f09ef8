"""What work costs a target, and what a target is: machine, cost functions, the questions that passes, emitters and driver ask."""
