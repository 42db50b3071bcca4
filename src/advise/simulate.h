/* A step of every rank of a layout, executed on a virtual clock. The ranks' programs are those of
 * training: each different one is planned and rehearsed (session/rehearsal.h) once, and the replay
 * (replay.h) plays all ranks. Work takes the times of a forecast; transfers take those of a cluster's
 * topology. Nothing in a simulation is measured. */
#pragma once

#include "advise/forecast.h"
#include "advise/replay.h"
#include "advise/topology.h"

typedef struct SimulatedRun {
    Mesh mesh;
    int programs;      /* different programs of ranks */
    int64_t calls;     /* collectives of all ranks in a step */
    double state;      /* bytes that a rank reads of a checkpoint: master weights and optimizer state */
    double seconds;    /* of planning and replay, on this machine */
    ReplayResult step; /* without the slow node */
    ReplayResult slow; /* with it; ranks: NULL if there is none */
} SimulatedRun;

/* Simulates the layout. ERROR_USAGE if the layout breaks a rule, or the ranks' collectives differ or
 * deadlock. Free it with simulation_free. */
bool simulate_layout(SimulatedRun *simulation, const Config *config, const Cluster *cluster, const Topology *topology,
    const ForecastLayout *layout, Error *error);
void simulation_free(SimulatedRun *simulation);

/* Prints the step beside its forecast, where its time goes and what limits it, a slow node, and a
 * lost rank. */
void simulation_print(const SimulatedRun *simulation, const Forecast *forecast, const Config *config, const Cluster *cluster,
    const Topology *topology, FILE *file);
