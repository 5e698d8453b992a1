// Many matrices x (n, rows, columns), transposed to y (n, columns, rows): a block for each tile of 32 x 32 numbers.
//
// A tile goes through shared memory, so that both arrays are read and written along their rows. A matrix has `tiles`
// tiles, `across` in a row of them.

KERNEL transpose(const REAL* x, REAL* y, Index rows, Index columns, Index across, Index tiles) {
    __shared__ REAL tile[32][33];  // a column more, so that the numbers of a column are in different banks
    const Index matrix = blockIdx.x / tiles, place = blockIdx.x % tiles;
    const Index row = place / across * 32, column = place % across * 32;
    const Index lane = threadIdx.x % 32, first = threadIdx.x / 32, step = blockDim.x / 32;
    x += matrix * rows * columns;
    y += matrix * rows * columns;
    for (Index i = first; i < 32; i += step)
        if (row + i < rows && column + lane < columns) tile[i][lane] = x[(row + i) * columns + column + lane];
    __syncthreads();
    for (Index i = first; i < 32; i += step)
        if (column + i < columns && row + lane < rows) y[(column + i) * rows + row + lane] = tile[lane][i];
}
