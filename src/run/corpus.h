/* The data of a run: shards as they are, text packed into RUN/data, or encodings of images. */
#pragma once

#include "comm/comm.h"
#include "data/bins.h"
#include "chat/prompts.h"
#include "data/held_out.h"
#include "token/tokenizer.h"
#include "images/encodings.h"
#include "run/phases.h"
#include "run/reference.h"

typedef struct Corpus {
    ShardSet *train;  /* [train_count]: the sources of the mixture, or data.train alone; owned */
    HeldOut held_out; /* with data.valid_documents, which `train` then lacks */
    BinPlan *bins;    /* [train_count], with data.packing=best_fit; else NULL; owned */
    int train_count;  /* 0 if the model makes images */
    ShardSet valid;
    BinPlan valid_bins;                   /* of a validation part of pairs */
    Reference reference, valid_reference; /* of pairs; not open before they are computed (loop_make_reference) */
    bool has_valid;
    PromptSet prompts, valid_prompts; /* of reinforcement learning, instead of train and valid; owned */
    int64_t prompt_length;            /* tokens per prompt in the order, which is not used: data.length */
    EncodingSet images, valid_images; /* of an image model, instead of train and valid; owned */
    int64_t image_length;             /* tokens per image and its text in the order: data.length; 0: text */
    Tokenizer *tokenizer;             /* of data.tokenizer; NULL: bytes, or unknown */
    bool bytes;                       /* made by the byte tokenizer */
} Corpus;

/* The name of data.tokenizer if shards do not record theirs. */
#define NO_TOKENIZER "none"
/* The byte tokenizer's name, for when an empty data.tokenizer would leave the choice open. */
#define BYTE_TOKENIZER "bytes"
/* Resolves settings from the data, before config_check. BYTE_TOKENIZER becomes "". An empty
 * data.tokenizer becomes the tokenizer that the shard of data.train records, or NO_TOKENIZER; for
 * text it means bytes. model.vocabulary 0 becomes the number of tokens, rounded up to a multiple of
 * 64. ERROR_USAGE if a shard records another tokenizer. */
bool corpus_resolve(Config *config, OptionStrings *strings, Error *error);

/* The state of RUN/data: nothing binding, packed by an earlier start, or just packed by another
 * process. */
typedef enum CorpusState { CORPUS_NEW, CORPUS_PACKED, CORPUS_MADE } CorpusState;
/* Opens data.train and data.valid: shards as they are, text after packing it into RUN/data (until
 * the first checkpoint). RUN/tokenizer holds a copy of data.tokenizer, so that the run no longer
 * needs the original. */
bool corpus_open(Corpus *corpus, const Config *config, const Phases *phases, CorpusState state, Error *error);
/* Returns the tokens of a source that can be inputs, for its order; padding of bins and of images
 * counts. */
int64_t corpus_inputs(const Corpus *corpus, int source);
/* Returns the prefix of the validation shard of a started run, for the caller to free. NULL: it has
 * none (FINDING_ABSENT), or this cannot be read now. */
char *corpus_valid(const Config *config, Error *error);
/* Returns whether RUN/data holds the packed copy of data.train, or, if `valid` is not NULL, of the
 * validation text with that absolute path. */
bool corpus_keeps(const char *run, const char *valid);
/* Maps the training part if it is already packed (*found): a shard, or RUN/data. */
bool corpus_map_train(ShardSet *train, const Config *config, bool *found, Error *error);
/* Returns whether data of this path is text, which a run packs. */
bool corpus_is_text(const Config *config, const char *path);
/* Returns what identifies the content of a text now; `held_out` as in PackOptions. NULL: it cannot be
 * read. */
json_t *corpus_identify_text(const Config *config, const char *path, bool held_out, Error *error);
/* Returns whether any training data is text. */
bool corpus_has_text(const Config *config);
/* Gives a fork the packed text and the tokenizer of its origin (links, or copies). */
bool corpus_fork(const Config *config, Error *error);
/* Returns the file of the reference of data.train or data.valid in RUN/data, for the caller to
 * free. */
char *corpus_reference_path(const Config *config, bool valid);
/* Opens the references that exist. */
bool corpus_open_references(Corpus *corpus, const Config *config, Error *error);
/* Sets config->steps and batch.last of a run that has reached `from`. They follow from
 * config->tokens, or from config->epochs over `inputs` inputs of training data; both are 0
 * afterwards. Then runs config_check. Without inputs, epochs are unchanged. ERROR_USAGE. */
bool corpus_resolve_steps(Config *config, int64_t inputs, Position from, Error *error);
/* Checks that a run of config->steps reads no source of its mixture more often than allowed, as far
 * as sources are packed: ERROR_USAGE, ERROR_DATA. A start checks all sources itself. */
bool corpus_check_epochs(const Config *config, Error *error);
/* Sets the error of data that `failed` of the ranks cannot read; `unread` is why this rank could
 * not, or ERROR_NONE. Always returns false: ERROR_DATA. */
bool corpus_refuse_unread(const Error *unread, int64_t failed, const Comm *comm, Error *error);
void corpus_close(Corpus *corpus);
