"""What happens at a call of an optimised callable: sizes that change, the way past Dynamo, lazy modules, the collector's pause."""
