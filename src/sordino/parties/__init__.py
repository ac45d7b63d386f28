"""Training between data owners: each brings its own records, and only noised sums are ever seen.

terms      what the parties agree on: a plan, their sizes, the engine, how many may collude
rows       which of its own records a party takes in a step
encoding   noise that later noise takes back, over sums whose noise is always fresh
learner    one party's computation: its vector of a turn, and the model after it
journal    what a party has taken part in, on its own disk
meeting    parties that come together find out where to go on
party      the whole of one party: meet, sum, keep, go on
consortium the file that all parties sign
together   all parties in one process, for research and tests
"""
