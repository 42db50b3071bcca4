/* The place of this node among the nodes of a run, from the variables of the program that started it. */
#pragma once

#include <stdint.h>

#include "base/error.h"

enum { NODE_PORT = 29500 /* unless a variable names another one */ };

typedef struct NodePlace {
    int nodes, node;   /* 1 and 0 if no variable is set */
    char address[256]; /* host of node 0 */
    int port;          /* of the supervisors' rendezvous */
} NodePlace;

/* Returns false with ERROR_USAGE if a variable has a value that is not allowed, or if the address is missing. */
bool node_find(NodePlace *place, Error *error);
/* Returns the number of ranks that the variables give this node, or 1 if none does. Returns 0 with ERROR_USAGE. */
int node_ranks(Error *error);
