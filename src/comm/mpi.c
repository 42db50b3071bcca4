/* Messages over MPI. The library is opened at run time, so that smelt starts without one. Handles
 * are pointers in Open MPI and numbers in other libraries; only Open MPI's interface (libmpi.so.40,
 * versions 4 and 5) is supported, and smelt runs over TCP under other libraries. MPI itself notices
 * a killed rank: mpirun ends the others. Owns the library's session. Made by comm_open, used by the
 * worker. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/library.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "comm/comm_internal.h"

enum { THREAD_SERIALIZED = 2, TAG = 1, ERROR_TEXT = 512, SPINS = 100, PAUSE_MICROSECONDS = 20, LONGEST_PAUSE_MICROSECONDS = 1000 };
static const int64_t most_at_once = 1 << 30; /* counts are int */

/* (our name, symbol, arguments) */
#define MPI_CALLS(CALL)                                                                                                                 \
    CALL(initialize, MPI_Init_thread, (int *argc, char ***argv, int wanted, int *given))                                                \
    CALL(finalize, MPI_Finalize, (void))                                                                                                \
    CALL(rank, MPI_Comm_rank, (void *comm, int *rank))                                                                                  \
    CALL(size, MPI_Comm_size, (void *comm, int *size))                                                                                  \
    CALL(set_handler, MPI_Comm_set_errhandler, (void *comm, void *handler))                                                             \
    CALL(send, MPI_Isend, (const void *data, int count, void *type, int peer, int tag, void *comm, void **request))                     \
    CALL(receive, MPI_Irecv, (void *data, int count, void *type, int peer, int tag, void *comm, void **request))                        \
    CALL(test, MPI_Test, (void **request, int *done, void *status))                                                                     \
    CALL(error_text, MPI_Error_string, (int number, char *text, int *length))

typedef struct Mpi {
    Transport transport;
    struct {
        MPI_CALLS(LIBRARY_FIELD)
        void *world, *byte, *errors_return;
    } call;
} Mpi;

/* -- The library --------------------------------------------------------------------------------------------------- */

static bool open_mpi_library(Mpi *mpi, Error *error) {
    static const char *const names[] = {MPI_CALLS(LIBRARY_NAME) "ompi_mpi_comm_world", "ompi_mpi_byte", "ompi_mpi_errors_return"};
    void *library = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL); /* the library's plug-ins look for its symbols */
    if (!library)
        return error_set(error, ERROR_USAGE,
            "MPI: %s; install Open MPI 4 or 5, or start with smelt launch or torchrun, which do not use MPI", dlerror());
    const char *missing = library_find(library, names, &mpi->call);
    return !missing || error_set(error, ERROR_USAGE, "libmpi.so.40 has no symbol %s: install Open MPI 4 or 5", missing);
}

static bool mpi_check(Mpi *mpi, int result, Error *error) {
    char text[ERROR_TEXT] = "";
    int length = 0;
    if (result == 0) return true;
    mpi->call.error_text(result, text, &length);
    return error_set(error, ERROR_COMMUNICATION, "MPI: %s", text);
}

/* -- The start ----------------------------------------------------------------------------------------------------- */

typedef struct StartArguments {
    int ends[2]; /* of a pipe: the rank writes a byte to the second one after MPI has started */
    const Place *place;
} StartArguments;

/* Runs in a child process. If MPI_Init_thread fails, Open MPI 4 ends the process by _exit, before
 * any error handler can be set. Open MPI's own messages name no rank, and mpirun sometimes loses
 * them. */
static int report_failed_start(void *context) {
    const StartArguments *start = context;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    char byte;
    close(start->ends[1]);
    if (read(start->ends[0], &byte, 1) == 1) return 0;
    log_error("rank %s on %s exited during MPI_Init_thread; see Open MPI's messages above, if any. Check that TMPDIR is writable and that "
              "OMPI_MCA_* and PMIX_* are as mpirun set them, or start with smelt launch, which does not use MPI",
        rank ? rank : "?", start->place->node);
    return 0;
}

static bool initialize_mpi(Mpi *mpi, int *given, Error *error) {
    StartArguments start = {.place = &mpi->transport.engine->place};
    if (pipe2(start.ends, O_CLOEXEC) != 0) return error_set(error, ERROR_COMMUNICATION, "MPI: cannot create a pipe: %s", strerror(errno));
    pid_t child = child_start(&(ChildOptions){.run = report_failed_start, .context = &start, .outlives = true});
    bool done = mpi_check(mpi, mpi->call.initialize(NULL, NULL, THREAD_SERIALIZED, given), error);
    ssize_t ignored = write(start.ends[1], "", 1);
    (void)ignored;
    close(start.ends[0]);
    close(start.ends[1]);
    if (child > 0) waitpid(child, NULL, 0);
    return done;
}

/* -- Messages ------------------------------------------------------------------------------------------------------ */

typedef struct Request {
    void *handle;
    Transfer *labels; /* the transfer whose label this receives, or NULL */
} Request;
typedef struct Requests {
    Request *items;
    int count;
} Requests;

static bool post_part(Mpi *mpi, Requests *requests, Transfer *transfer, bool label, void *data, int64_t bytes, Error *error) {
    Request *request = &requests->items[requests->count++];
    request->labels = label && transfer->receive ? transfer : NULL;
    return mpi_check(mpi,
        transfer->receive ? mpi->call.receive(data, (int)bytes, mpi->call.byte, transfer->peer, TAG, mpi->call.world, &request->handle)
                          : mpi->call.send(data, (int)bytes, mpi->call.byte, transfer->peer, TAG, mpi->call.world, &request->handle),
        error);
}

static bool post(Mpi *mpi, Requests *requests, Transfer *transfer, Error *error) {
    bool done = post_part(mpi, requests, transfer, true, transfer->receive ? &transfer->seen : &transfer->label, sizeof(Label), error);
    for (int64_t at = 0; done && at < transfer->bytes; at += most_at_once)
        done = post_part(mpi, requests, transfer, false, transfer->data + at,
            transfer->bytes - at < most_at_once ? transfer->bytes - at : most_at_once, error);
    return done;
}

/* Drops the requests that are complete; returns their number, or -1 after a failure. */
static int progress(Mpi *mpi, Requests *requests, Error *error) {
    int kept = 0, before = requests->count;
    for (int i = 0; i < before; i++) {
        Request request = requests->items[i];
        int done = 0;
        if (!mpi_check(mpi, mpi->call.test(&request.handle, &done, NULL), error)) return -1;
        if (done && request.labels && !label_check(request.labels, error)) return -1;
        if (!done) requests->items[kept++] = request;
    }
    requests->count = kept;
    return before - kept;
}

/* Polls for a while, then sleeps between polls. The cores may all be computing, and a yield would
 * cost a whole time slice. A sleep takes a sixteenth of the time without progress, because each
 * poll costs a core that another rank needs. */
static bool complete(Mpi *mpi, Requests *requests, const Transfer *transfers, Error *error) {
    double start = log_seconds(), last = start;
    for (int idle = 0; requests->count; idle++) {
        int done = progress(mpi, requests, error);
        if (done < 0 || (requests->count && engine_stopped(mpi->transport.engine, start, transfers, error))) return false;
        if (done) {
            idle = 0;
            last = log_seconds();
        }
        if (idle < SPINS) continue;
        double pause = (log_seconds() - last) * 1e6 / 16;
        usleep((useconds_t)fmin(fmax(pause, PAUSE_MICROSECONDS), LONGEST_PAUSE_MICROSECONDS));
    }
    return true;
}

static bool mpi_exchange(Transport *transport, Transfer *transfers, int count, Error *error) {
    Mpi *mpi = (Mpi *)transport;
    Requests requests = {0};
    int64_t most = 0;
    for (int i = 0; i < count; i++) most += 2 + transfers[i].bytes / most_at_once;
    SCOPED_FREE Request *items = memory_allocate((size_t)(most + 1) * sizeof *items);
    requests.items = items;
    for (int i = 0; i < count; i++)
        if (!post(mpi, &requests, &transfers[i], error)) return false;
    return complete(mpi, &requests, transfers, error);
}

static bool watch_mpi(Transport *transport, Error *error) {
    (void)transport, (void)error;
    return true;
}

/* After a failure MPI_Finalize is skipped, because it would wait for ranks that may never answer.
 * mpirun then sees a rank that exited without it, and ends the rest. */
static void mpi_close(Transport *transport, bool orderly) {
    Mpi *mpi = (Mpi *)transport;
    if (orderly) mpi->call.finalize();
    free(mpi);
}

Transport *mpi_open(CommEngine *engine, Error *error) {
    Mpi *mpi = memory_allocate(sizeof *mpi);
    int given = 0;
    mpi->transport = (Transport){.name = "MPI", .exchange = mpi_exchange, .watch = watch_mpi, .close = mpi_close, .engine = engine};
    bool opened = open_mpi_library(mpi, error) && initialize_mpi(mpi, &given, error) &&
                  mpi_check(mpi, mpi->call.set_handler(mpi->call.world, mpi->call.errors_return), error) &&
                  mpi_check(mpi, mpi->call.rank(mpi->call.world, &engine->place.rank), error) &&
                  mpi_check(mpi, mpi->call.size(mpi->call.world, &engine->place.size), error);
    if (opened && given < THREAD_SERIALIZED)
        opened = error_set(error, ERROR_USAGE,
            "this MPI supports calls only from the main thread: use an MPI built with MPI_THREAD_MULTIPLE, or TCP (smelt launch, "
            "torchrun)");
    if (opened) return &mpi->transport;
    free(mpi);
    return NULL;
}
