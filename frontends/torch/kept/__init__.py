"""Traces of Dynamo and AOTAutograd as data, so that a later process need not make them again."""
