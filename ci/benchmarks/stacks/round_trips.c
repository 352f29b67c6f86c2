/* Ping-pong for MPI in C, with the arguments and the output of tests/live/applications/round_trips.py. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WARM_UP = 10, LARGE = 8192 };

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double quantile(const double *ordered, int count, double share)
{
    int index = (int)(share * count);
    return ordered[index < count ? index : count - 1];
}

static long cpu_time(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void trips(int rank, int size, int count)
{
    char *message = malloc(size + 1), *buffers[2] = {malloc(size + 1), malloc(size + 1)};
    double *halves = malloc(count * sizeof *halves);
    long cpu_start = 0;
    MPI_Request arrival;
    for (int index = 0; index < size; index++)
        message[index] = (char)rand();
    MPI_Irecv(buffers[0], size, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, &arrival);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int number = -WARM_UP; number < count; number++) {
        if (number == 0)
            cpu_start = cpu_time();
        char *current = buffers[(number + WARM_UP) % 2], *next = buffers[(number + WARM_UP + 1) % 2];
        double start = MPI_Wtime();
        if (rank == 0)
            MPI_Send(message, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        MPI_Wait(&arrival, MPI_STATUS_IGNORE);
        if (number >= 0)
            halves[number] = (MPI_Wtime() - start) / 2 * 1e9;
        if (number + 1 < count)
            MPI_Irecv(next, size, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, &arrival);
        if (rank == 1)
            MPI_Send(current, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
        else if (memcmp(current, message, size))
            MPI_Abort(MPI_COMM_WORLD, 1);
    }
    long cpu_used = cpu_time() - cpu_start;
    if (rank == 0) {
        qsort(halves, count, sizeof *halves, compare);
        printf("{\"size_bytes\": %d, \"count\": %d, \"min_ns\": %.0f, \"p50_ns\": %.0f, \"p90_ns\": %.0f, "
               "\"p99_ns\": %.0f, \"cpu_ns\": %ld}\n",
               size, count, halves[0], quantile(halves, count, 0.5), quantile(halves, count, 0.9),
               quantile(halves, count, 0.99), cpu_used / (2 * count));
        fflush(stdout);
    }
    free(message), free(buffers[0]), free(buffers[1]), free(halves);
}

int main(int argc, char **argv)
{
    int rank, count = argc > 1 ? atoi(argv[1]) : 1000;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int argument = 2; argument < argc; argument++) {
        int size = atoi(argv[argument]);
        trips(rank, size, size <= LARGE ? count : count / 10 ? count / 10 : 1);
    }
    MPI_Finalize();
    return 0;
}
