"""One page for each group of verbs: add(verbs) describes them, and each verb's function returns the exit status."""
