/* A packing in progress, which these files share: pack.c (the steps), pack_options.c, pack_shards.c, pack_folder.c,
 * pack_documents.c and pack_summary.c. */
#pragma once

#include <xxhash.h>

#include "base/log.h"
#include "base/memory.h"
#include "data/pack_internal.h"
#include "data/shard_writer_internal.h"
#include "token/tokenizer.h"

/* The record of a folder of shards, FOLDER/pack.json; that of single shards is PREFIX.pack.json (SHARDS_FILE). */
#define PACK_RECORD "pack.json"

/* The training part or, if requested, the validation part. */
typedef struct PackPart {
    char *name;         /* OUTPUT, OUTPUT-train or OUTPUT-valid; NULL: the packing lacks this part */
    char *place;        /* for a folder of shards: the path it is written to, which is NAME, or NAME.next beside an older result */
    PackUpload *upload; /* for OUTPUT in a bucket, where finished shards go; otherwise NULL */
    ShardWriter *writer;
    int64_t open_tokens; /* tokens of the open shard */
} PackPart;

typedef struct Packer {
    PackOptions options;
    char *staging; /* options.output in place of one in a bucket */
    PackFiles files;
    PackReport report;
    PackPart train, valid;
    Tokenizer *tokenizer;      /* NULL: byte tokens */
    Chat *chat;                /* for conversations; otherwise NULL */
    TokenizerTrainer *trainer; /* if set, it receives the documents, and nothing is packed */
    PipelineOptions pipeline;
    RecordReader *reader;
    HashSet *seen;
    bool places; /* `seen` has the place of each document */
    DedupAgainst against;
    RestoreList *restore; /* NULL: all documents are read */
    DropLog *dropped;     /* NULL: what is dropped is only counted */
    File hashes;          /* for a folder of shards: the entries of `seen`, for the next start */
    uint64_t *new_hashes;
    size_t new_hash_count, new_hash_capacity;
    int lock, next_lock;
    bool done; /* an earlier process packed everything, and was killed */
    /* The open document that arrives in pieces. */
    XXH3_state_t *long_hash;
    int32_t *held; /* its tokens, until it is known whether the document is kept */
    size_t held_count, held_capacity;
    int64_t long_tokens, long_bytes, long_line;
    bool long_dropped, long_bad; /* long_bad: the document is counted as bad, once for all its pieces */
    int64_t last_file;
    Progress progress;
    int64_t done_before, tokens_before;
} Packer;

static inline bool packer_in_folder(const Packer *packer) { return packer->options.shard_tokens > 0; }
/* Returns the path of a file of the whole packing: in the folder of the training part, or PREFIX.NAME; the caller frees. */
static inline char *packer_path(const Packer *packer, const char *name) {
    return packer_in_folder(packer) ? memory_format("%s/%s", packer->train.place, name) : memory_format("%s.%s", packer->train.name, name);
}
static inline const char *packer_tokenizer_name(const Packer *packer) { return packer->options.tokenizer ? packer->options.tokenizer : ""; }
/* Returns the template of conversations, which the shards record; "" for text. */
static inline const char *packer_template(const Packer *packer) { return packer->chat ? chat_template_source(packer->chat) : ""; }

/* -- Options (pack_options.c): ERROR_USAGE ------------------------------------------------------------------------------ */

bool pack_check_options(const PackOptions *options, Error *error);
/* Refuses settings for conversations with text, and settings for text with conversations: they
 * would have no effect. */
bool pack_check_idle(const PackOptions *options, Error *error);

/* -- Shards and the record (pack_shards.c) ------------------------------------------------------------------------------ */

/* Returns the number of finished shards of a part. */
int64_t *packer_shards(Packer *packer, const PackPart *part);
/* Opens the next shard of a part, unless one is open. */
bool packer_open_part(Packer *packer, PackPart *part, Error *error);
/* Completes the open shards. The validation part gets its name first: if the training part then
 * fails, no run can start on half of a split. */
bool packer_finish_shards(Packer *packer, Error *error);
bool packer_write_record(const Packer *packer, bool complete, Error *error);
/* Reads the record, and how it differs from this packing. */
bool packer_read_record(Packer *packer, PackFound *found, char **difference, Error *error);
/* Sets `done` if a packing that ended while its files got their names was this one. */
bool packer_was_this_one(Packer *packer, Error *error);
/* Returns whether standard input is read; its content cannot be compared with an earlier one. */
bool packer_reads_standard_input(const Packer *packer);
/* Gives the shards of a complete packing, which `ended`, their names. */
bool packer_resume_shards(const Packer *packer, bool *ended, Error *error);
/* Opens a shard for each part at once, so that a name that cannot be written fails before any text
 * is read. */
bool packer_open_shards(Packer *packer, Error *error);
/* Writes what was dropped and what was seen, before the shards get their names. */
bool packer_finish_lists(Packer *packer, Error *error);
/* Removes the lists of a shard that was replaced by one without such lists. */
bool packer_remove_old_lists(const Packer *packer, Error *error);

/* -- A folder of shards (pack_folder.c) --------------------------------------------------------------------------------- */

/* Locks the folder, and gives a complete packing that waits for its names the names: *ended. Otherwise decides where the folder is made. */
bool packer_resume_folder(Packer *packer, bool *ended, Error *error);
/* Makes or resumes the folder, and OUTPUT in a bucket. */
bool packer_open_folder(Packer *packer, Error *error);
/* Ends the full shards, records the position after them, and uploads them. */
bool packer_end_shards(Packer *packer, RecordPosition position, Error *error);
/* Writes the final record, or completes the bucket. */
bool packer_end_folder(Packer *packer, Error *error);

/* -- Documents (pack_documents.c), and the end (pack_summary.c) ----------------------------------------------------------- */

TakeBlock packer_take_block; /* with a Packer as context */
void packer_warn(const Packer *packer);
/* Checks the result; if nothing is left, the list of what was dropped stays. */
bool packer_check_kept(Packer *packer, Error *error);
