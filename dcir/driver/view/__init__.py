"""The driver's part of `dcir view`: captures what a model becomes, predicts and measures what else it could become."""
