"""Fuzzing of everything that reads bytes which somebody else wrote.

    python -m fuzz csv -runs=10000          one reader, options of libFuzzer after it
    python -m fuzz all --inputs 1000000     every reader, with a table at the end

`readers.py` is the table of readers, `contract.py` what each of them must keep to, `mutate.py` how valid
files are spoilt, `guided.py` the coverage-guided fuzzer (extra `fuzz`). The tests in `tests/fuzz` use the
same table and the same contract.
"""
