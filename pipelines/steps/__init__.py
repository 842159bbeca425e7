"""The steps of a pipeline and the forms they come in: one run or a sweep, one pod or many."""
