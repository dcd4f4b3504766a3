"""Right answers and known-wrong ones of every exercise, one page a lesson; the tests of the checks run them all."""
