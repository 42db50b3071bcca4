/* What a rank saves, cut into pieces (pieces.c). Not for other modules. */
#pragma once

#include "ckpt/ckpt_internal.h"

typedef struct Pieces {
    ManifestInterval *entries; /* their intervals point into the caller's memory */
    size_t count;
    ManifestFile *files; /* the shard of this rank, then what is shared */
    size_t file_count;
    int64_t shared; /* bytes of pieces that are not written */
    bool hashed;
} Pieces;

Pieces pieces_cut(const Interval *intervals, size_t count);
void pieces_free(Pieces *pieces);
/* Finds what an older checkpoint has already. */
void pieces_share(Pieces *pieces, const Manifest *older);
/* Gives the shared files their names in `folder`. */
bool pieces_link(const Pieces *pieces, Store *store, const Manifest *older, const char *folder, Error *error);
/* Writes the shard with all other pieces. `shard` is its name in `folder` and is kept. */
bool pieces_put(Pieces *pieces, Store *store, const char *folder, const char *shard, Error *error);
