"""The rules that pick items, and the trees they stand on."""
