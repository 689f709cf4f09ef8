"""What Dynamo's guards look at, as facts that native code compares."""
