/* The rendezvous of TCP ranks. Every rank listens: rank 0 at the run's address, each other rank at
 * a port that the system chooses, on its interface toward rank 0. Each rank tells rank 0 where it
 * listens. When all have come, rank 0 sends the table to everyone, and each rank above 0 connects
 * to the ranks between. All of this goes over authenticated channels: a process that does not know
 * the run's secret gets no seat. After the rendezvous the connections carry collectives without
 * proofs. Owns the channels until then. Called by tcp.c. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "comm/acceptor.h"
#include "comm/comm_internal.h"
#include "comm/socket.h"

enum { RETRY_MILLISECONDS = 100, TRY_SECONDS = 5 };

typedef struct MeetHello {
    int32_t rank, size;
    uint64_t job;
    uint32_t port, unused; /* where the sender listens */
} MeetHello;
_Static_assert(sizeof(MeetHello) == 24, "messages have no padding: they are the same on every host");

/* The address where a rank listens, as rank 0 sees it: a sockaddr_in or sockaddr_in6, as its family
 * says. */
typedef struct sockaddr_in6 MeetEntry;

typedef struct Meeting {
    const Place *place;
    const CommOptions *options;
    double until;                  /* log_seconds() */
    struct sockaddr_storage first; /* rank 0's address */
    Acceptor *acceptor;
    Channel *seats; /* by rank; this rank's own stays closed */
    MeetEntry *table;
} Meeting;

/* Retries while an earlier run that is about to end still holds the port. */
static bool listen_on(Meeting *meeting, const struct sockaddr_storage *address, Error *error) {
    const Place *place = meeting->place;
    AcceptorOptions options = {.secret = &place->secret,
        .service = CHANNEL_RANKS,
        .host = place->address,
        .address = address,
        .lost = meeting->options->lost,
        .hello_bytes = sizeof(MeetHello)};
    while (!(meeting->acceptor = acceptor_open(&options)) && errno == EADDRINUSE && log_seconds() < meeting->until)
        usleep(RETRY_MILLISECONDS * 1000);
    return meeting->acceptor || error_set(error, ERROR_COMMUNICATION, "rank %d cannot listen on port %d: %s; set another MASTER_PORT",
                                    place->rank, socket_port(address), strerror(errno));
}

/* -- Ranks above this one ------------------------------------------------------------------------------------------ */

/* Returns the permanent fault of a hello that proves the secret; NULL: none. */
static const char *find_fault(const Place *place, const MeetHello *hello) {
    if (hello->size != place->size) return "the number of ranks differs: check WORLD_SIZE";
    if (hello->rank <= place->rank || hello->rank >= place->size || hello->port >= 65536)
        return "this rank should not connect to it: check RANK and WORLD_SIZE";
    return NULL;
}

/* Seats the next rank that comes. A taken seat is given again only if the connection of its rank
 * has ended. Returns false when the time is over. */
static bool seat_rank(Meeting *meeting) {
    MeetHello hello;
    Channel channel;
    if (!acceptor_next(meeting->acceptor, meeting->until, &channel, &hello)) return false;
    const char *fault = find_fault(meeting->place, &hello);
    Channel *seat = fault ? NULL : &meeting->seats[hello.rank];
    if (hello.job != meeting->place->job)
        channel_answer(&channel, CHANNEL_LATER, "its SLURM_JOB_ID, SLURM_STEP_ID or TORCHELASTIC_RUN_ID differs", meeting->until);
    else if (fault) channel_answer(&channel, CHANNEL_REFUSED, fault, meeting->until);
    else if (channel_is_alive(seat))
        channel_answer(&channel, CHANNEL_LATER, "another process has the same rank: set a different RANK for each process", meeting->until);
    else if (channel_answer(&channel, CHANNEL_WELCOME, "", meeting->until)) {
        struct sockaddr_storage from = {0};
        socklen_t size = sizeof from;
        channel_close(seat);
        *seat = channel;
        socket_reset_at_close(channel.socket);
        (void)!getpeername(channel.socket, (struct sockaddr *)&from, &size);
        socket_set_port(&from, (int)hello.port);
        memcpy(&meeting->table[hello.rank], &from, sizeof *meeting->table);
    }
    return true;
}

/* Returns whether a rank is seated. Rank 0 frees the seat of a rank that has died, because another
 * process of that rank may be coming. The other ranks do not: they learn of the death from their
 * collectives, because rank 0 no longer seats anyone. */
static bool is_seated(Meeting *meeting, int rank) {
    Channel *seat = &meeting->seats[rank];
    if (seat->open && meeting->place->rank == 0 && !channel_is_alive(seat)) channel_close(seat);
    return seat->open;
}

static bool seat_all(Meeting *meeting, Error *error) {
    const Place *place = meeting->place;
    for (;;) {
        int missing = 0, first = -1;
        for (int rank = place->size - 1; rank > place->rank; rank--)
            if (!is_seated(meeting, rank)) missing++, first = rank;
        if (!missing) return true;
        if (!seat_rank(meeting))
            return error_set(error, ERROR_COMMUNICATION,
                "%d of %d ranks did not reach rank %d in %.0f s; the first is rank %d. Check that it started and that its network reaches "
                "%s",
                missing, place->size, place->rank, meeting->options->appear, first, place->address);
    }
}

static bool meet_as_first(Meeting *meeting, Error *error) {
    size_t bytes = (size_t)meeting->place->size * sizeof *meeting->table;
    if (!listen_on(meeting, &meeting->first, error) || !seat_all(meeting, error)) return false;
    for (int rank = 1; rank < meeting->place->size; rank++)
        if (!channel_send(&meeting->seats[rank], meeting->table, bytes, meeting->until))
            return error_set(error, ERROR_COMMUNICATION, "rank %d disconnected during startup", rank);
    return true;
}

/* -- Ranks below this one ------------------------------------------------------------------------------------------ */

/* Takes a seat at a rank below this one. The listener at rank 0's address may be another program,
 * so the connection to it is tried for TRY_SECONDS only. The addresses of other ranks come from
 * rank 0; they answer once they have reached the ranks below them. */
static bool try_rank(Meeting *meeting, int rank, const struct sockaddr_storage *address, Error *error) {
    const Place *place = meeting->place;
    MeetHello hello = {.rank = place->rank, .size = place->size, .job = place->job, .port = (uint32_t)acceptor_port(meeting->acceptor)};
    double now = log_seconds(), until = now + TRY_SECONDS < meeting->until ? now + TRY_SECONDS : meeting->until;
    int made = socket_connect(address, meeting->options->lost, until);
    if (made < 0)
        return error_set(
            error, ERROR_COMMUNICATION, "no answer; check that all %d ranks started and that the network reaches it", place->size);
    socket_reset_at_close(made);
    if (rank > 0) until = meeting->until;
    return channel_greet(&meeting->seats[rank], made, &place->secret, CHANNEL_RANKS, &hello, sizeof hello, until, error) &&
           channel_await_welcome(&meeting->seats[rank], meeting->until, error);
}

/* Retries, because a rank may not listen yet, or its port may still belong to an earlier attempt
 * that is about to end. Rank 0 then sends the table. */
static bool reach_rank(Meeting *meeting, int rank, const struct sockaddr_storage *address, Error *error) {
    size_t bytes = (size_t)meeting->place->size * sizeof *meeting->table;
    char number[SOCKET_TEXT], reason[512] = "";
    for (; log_seconds() < meeting->until; usleep(RETRY_MILLISECONDS * 1000)) {
        Error failure = {0};
        if (try_rank(meeting, rank, address, &failure)) {
            if (rank > 0 || channel_receive(&meeting->seats[0], meeting->table, bytes, meeting->until)) return true;
            error_set(&failure, ERROR_COMMUNICATION, "it closed the connection before all ranks connected");
            channel_close(&meeting->seats[0]);
        }
        if (failure.code != ERROR_COMMUNICATION)
            return error_set(error, failure.code, "rank %d cannot join: %.500s", meeting->place->rank, failure.message);
        snprintf(reason, sizeof reason, "%.500s", failure.message);
    }
    socket_describe(address, number);
    return error_set(error, ERROR_COMMUNICATION, "rank %d could not connect to rank %d at %s:%d in %.0f s: %s", meeting->place->rank, rank,
        number, socket_port(address), meeting->options->appear, reason);
}

/* Returns the address of a rank. A rank that rank 0 reached over the loopback is on the host of
 * rank 0. */
static struct sockaddr_storage rank_address(const Meeting *meeting, int rank) {
    struct sockaddr_storage address = {0};
    memcpy(&address, &meeting->table[rank], sizeof *meeting->table);
    if (!socket_is_loopback(&address)) return address;
    int port = socket_port(&address);
    address = meeting->first;
    socket_set_port(&address, port);
    return address;
}

/* On rank 0's host the system may choose the very port where rank 0 is about to listen. A second
 * listener, opened before the first is closed, gets another port. */
static bool listen_anywhere(Meeting *meeting, Error *error) {
    struct sockaddr_storage own = socket_local_address(&meeting->first);
    if (!listen_on(meeting, &own, error)) return false;
    if (acceptor_port(meeting->acceptor) != meeting->place->port) return true;
    Acceptor *in_the_way = meeting->acceptor;
    bool listens = listen_on(meeting, &own, error);
    acceptor_close(in_the_way);
    return listens;
}

static bool meet_as_other(Meeting *meeting, Error *error) {
    if (!listen_anywhere(meeting, error) || !reach_rank(meeting, 0, &meeting->first, error)) return false;
    for (int rank = 1; rank < meeting->place->rank; rank++) {
        struct sockaddr_storage address = rank_address(meeting, rank);
        if (!reach_rank(meeting, rank, &address, error)) return false;
    }
    return seat_all(meeting, error);
}

int *tcp_meet(const Place *place, const CommOptions *options, Error *error) {
    Meeting meeting = {.place = place, .options = options, .until = log_seconds() + options->appear};
    SCOPED_FREE Channel *seats = meeting.seats = memory_allocate((size_t)place->size * sizeof *seats);
    SCOPED_FREE MeetEntry *table = meeting.table = memory_allocate((size_t)place->size * sizeof *table);
    bool met = socket_resolve(place->address, place->port, &meeting.first, error) &&
               (place->rank == 0 ? meet_as_first : meet_as_other)(&meeting, error);
    acceptor_close(meeting.acceptor);
    int *sockets = met ? memory_allocate((size_t)place->size * sizeof *sockets) : NULL;
    for (int rank = 0; rank < place->size; rank++) {
        if (met) sockets[rank] = seats[rank].open ? seats[rank].socket : -1;
        else channel_close(&seats[rank]);
    }
    return sockets;
}
