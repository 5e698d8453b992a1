// What a pass says about its step.

// Clear the flag unless all of `count` numbers are finite; it stays as it is otherwise. One thread.
KERNEL all_finite(const double* numbers, Index count, Index* finite, Index n) {
    FOR_EACH(i, n)
        for (Index k = 0; k < count; ++k) if (!(numbers[k] - numbers[k] == 0)) *finite = 0;
}
