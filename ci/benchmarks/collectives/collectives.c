/* Allreduce and Alltoall for MPI in C, measured as the workload `imb` measures them.

   collectives COUNT SECONDS SIZE ...: makes COUNT calls of each size, in SECONDS at most; prints a line of JSON for each
   operation and size. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { WARM_UP = 2 };

typedef void operation(char *sent, char *received, int size);

static void allreduce(char *sent, char *received, int size)
{
    MPI_Allreduce(sent, received, size / (int)sizeof(float), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void alltoall(char *sent, char *received, int size)
{
    MPI_Alltoall(sent, size, MPI_BYTE, received, size, MPI_BYTE, MPI_COMM_WORLD);
}

/* Returns the seconds of `count` calls. */
static double time_calls(operation *call, char *sent, char *received, int size, int count)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int number = 0; number < count; number++)
        call(sent, received, size);
    return MPI_Wtime() - start;
}

static void measure(const char *name, operation *call, int size, int max_count, double seconds)
{
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    char *sent = calloc(ranks, size), *received = calloc(ranks, size);
    double warm_up = time_calls(call, sent, received, size, WARM_UP) / WARM_UP;
    int local_count = warm_up * max_count > seconds ? (int)(seconds / warm_up) : max_count, count;
    local_count = local_count < 1 ? 1 : local_count;
    MPI_Allreduce(&local_count, &count, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    double each = time_calls(call, sent, received, size, count) / count, total;
    MPI_Reduce(&each, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("{\"benchmark\": \"%s\", \"size_bytes\": %d, \"count\": %d, \"avg_ns\": %.0f}\n", name, size, count,
               total / ranks * 1e9);
        fflush(stdout);
    }
    free(sent), free(received);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    for (int argument = 3; argument < argc; argument++)
        measure("Allreduce", allreduce, atoi(argv[argument]), atoi(argv[1]), atof(argv[2]));
    for (int argument = 3; argument < argc; argument++)
        measure("Alltoall", alltoall, atoi(argv[argument]), atoi(argv[1]), atof(argv[2]));
    MPI_Finalize();
    return 0;
}
