/* The identity of a run, which prevents confusing it with another run. An identity is a flat JSON
 * object of texts: the run's number, the program's version, every setting that decides results, and
 * the content of the paths in the settings:
 *
 *     {"run": "5f0c...", "version": "0.9", "seed": "1", ..., "data.train": "bible",
 *      "data.train.content": "66 documents, 4345112 tokens, xxh3 ...", "init.content": "run 77ab... after step 400"}
 *
 * Instead of one content of data.train, a mixture has for each source
 * data.train.source.NAME.content and .order (the other inputs of the order of its pieces), and for
 * each phase data.train.phase.N and data.train.phase.N.batch.
 *
 * Texts are compared byte by byte, contents with checksums by checksum, and shown in messages. A
 * path is compared by its content: data.train and init may move. Every checkpoint keeps the
 * identity of the run that wrote it in its metadata; RUN/run.json keeps the identity of the last
 * start. A start compares its own identity with the newest checkpoint's, and all ranks compare
 * theirs with rank 0's. */
#pragma once

#include <jansson.h>

#include "comm/comm.h"
#include "config/config.h"
#include "run/corpus.h"

/* Returns the values of all settings, or only of settings that decide results, as a run remembers
 * them. */
json_t *identity_settings(const Config *config, bool all);
/* Returns the settings of a saved identity that decide results. A setting that the saving program
 * did not know has its present default. */
json_t *identity_saved_settings(const json_t *saved);
/* Gives `config` the settings of a saved identity that decide results. Settings unknown to this
 * program are unchanged. A path is unchanged if `now`, a later identity of the run (NULL: unknown),
 * has the same content there. ERROR_USAGE. */
bool identity_restore(const json_t *saved, const json_t *now, Config *config, OptionStrings *strings, Error *error);
/* Returns the content of a folder or file that init= names: for a run its number and the
 * checkpoint's step, else a checksum of samples of its files. NULL on failure. */
json_t *identity_of_source(const char *path, Error *error);
/* Returns the content of the base of a run's adapters. Its files are read whole, because a change
 * between samples would be missed. RUN/base.json keeps the checksum of each file, valid while the
 * file's size, time and inode are unchanged. `keeps`: a start of the run is the caller, and writes
 * RUN/base.json. NULL on failure. */
json_t *identity_of_base(const char *path, const char *run, bool keeps, Error *error);
/* Compares two contents by the checksums that both have. */
bool identity_same_content(const char *content, const char *other);
/* Returns the content of a PEFT folder, without its base, or of a run. NULL on failure. */
json_t *identity_of_adapters(const char *name, Error *error);
/* Returns the content of a file or folder of text: names, sizes, and samples of the files;
 * `held_out`: for validation, as in PackOptions. NULL on failure. */
json_t *identity_of_text(const char *path, bool held_out, Error *error);
/* Makes the identity of a start: `run` is the run's number; `corpus` is open. `started`: there is a
 * checkpoint, so the weights of init= are no longer read, unless adapters train on them. `whole`:
 * this rank reads the base of adapters whole, as one rank of each node does; the others read
 * samples. NULL on failure. */
json_t *identity_create(
    const Config *config, const Phases *phases, const Corpus *corpus, const char *run, bool started, bool whole, Error *error);
/* Adds the checksum of the reference of data.train to an identity, so that checkpoints continue
 * with no other reference. */
void identity_put_reference(json_t *identity, const Reference *reference);
/* Settles the reference, which is computed after `changes` is listed. Returns whether the
 * checkpoint has the same reference as `identity`. If so, removes the difference from `changes`; if
 * not, the difference names both. */
bool identity_settle_reference(const json_t *identity, json_t *changes);
/* Makes `saved` equal to `now` in the allowed differences, and appends each of them to `changes`.
 * `saved` is the identity of a checkpoint, after `begun` phases have begun. Allowed are differences
 * of later phases, of batches, and of unread sources. */
void identity_settle_mixture(json_t *saved, const json_t *now, const Phases *phases, int begun, json_t *changes);

/* Checks that each word of resume.accept is a name of an identity, or the first part of some:
 * "data" of "data.train". ERROR_USAGE. */
bool identity_check_words(const char *accepted, Error *error);
/* Appends a line "NAME: SAVED -> NOW" to the array `changes` for each allowed difference: the
 * setting may change, or a word of `accepted` names it. Other differences are ERROR_USAGE; `what`
 * is the name of the saved object for the message. */
bool identity_check(const char *what, const json_t *saved, const json_t *now, const char *accepted, json_t *changes, Error *error);
/* Checks that `saved`, the identity of a checkpoint of `run`, names the model of `config`, the
 * run's config.yaml: ERROR_CHECKPOINT. */
bool identity_check_model(const char *run, const json_t *saved, const Config *config, Error *error);
/* Returns whether a word of a list as in resume.accept is `name`, or a part of it before a dot. */
bool identity_accepts(const char *accepted, const char *name);
/* Returns whether the list allows repacking text: other text, or a setting that affects the
 * packing. */
bool identity_accepts_packing(const char *accepted);
/* Returns an identity without the settings: run, version and the content of data, which is equal on
 * all ranks, wherever each rank has the data. */
json_t *identity_content(const json_t *identity);
/* Checks that all ranks have the same texts in the object `mine`; `what` is its name for messages.
 * Ranks that differ from rank 0 list the differences: ERROR_USAGE. Collective. */
bool identity_agree(Comm *comm, const char *what, const json_t *mine, Error *error);
