/* The place of this node among the nodes of a run, from the variables of the program that started it. */
#pragma once

#include <stdint.h>

#include "base/error.h"

enum { NODE_PORT = 29500 /* unless a variable names another one */ };

typedef struct NodePlace {
    int nodes, node;   /* 1 and 0 if no variable is set */
    char address[256]; /* host of node 0 */
    int port;          /* at which the supervisors meet */
} NodePlace;

/* ERROR_USAGE names a variable with a value that is not allowed, or the missing address. */
bool node_find(NodePlace *place, Error *error);
/* Returns the ranks of this node that the variables ask for, or 1. 0: ERROR_USAGE. */
int node_ranks(Error *error);
