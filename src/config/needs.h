/* The conditions under which settings have an effect: one table (needs.c) for refusals, warnings,
 * --help and a test that walks it. A setting without a row has an effect in every run.
 *
 * Commands pass `said`: the settings of this start, from its file or its arguments; all others have
 * their defaults. Settings that a run remembered or a model supplied therefore cause no error. */
#pragma once

#include "config/config.h"

/* Facts that conditions need and that settings do not tell, known when a run starts. */
typedef struct RunFacts {
    bool has_ranks;      /* the run has several ranks */
    bool repeats;        /* several ranks hold some of the same trained matrices and sum their gradients */
    bool shares_weights; /* ZeRO divides some of these matrices, if layout.zero says so */
    bool exceeds_window; /* some sequences are longer than model.window */
    bool has_rounds;     /* a step has several microbatches, and each rank has whole weights */
    bool has_cpu;        /* the run computes on a CPU */
    bool packs;          /* some data are text that is not packed yet */
    bool splits;         /* all training data are text from one source */
    bool has_bucket;     /* some data are in an s3:// store */
    bool has_valid;      /* there are validation data */
    bool has_tokenizer;  /* the tokenizer of the data is known, and it is not bytes */
    bool writes;         /* evaluations may write text: the tokenizer is known */
    bool continues;      /* the run was started before */
    bool leaves_theta;   /* some phase of the data has no rope_theta of its own */
    bool leaves_ramp;    /* the first phase of the data has no ramp of its own */
} RunFacts;

/* A row of the table. */
typedef struct Need {
    const char *name; /* of an option, which may have several rows */
    const char *what; /* continues "has no effect without" */
    /* `facts` is NULL for rows that do not use it. `met` and `what` NULL: a family or an optimizer whose
     * rule lists the setting. */
    bool (*met)(const Config *config, const RunFacts *facts);
    enum { NEED_OR_REFUSE, NEED_OR_WARN, NEED_AT_START } answer; /* AT_START also warns; its condition uses facts */
} Need;
typedef struct NeedTable {
    const Need *rows;
    size_t count;
} NeedTable;
extern const NeedTable needs_table;
/* Returns what the row's setting needs, as in "model.family=zaya or llama". The caller frees it. */
char *needs_describe(const Need *need);

/* ERROR_USAGE names the first setting of `said`, except layout.*, that is for another kind of
 * run. */
bool needs_check(const Config *config, const Config *said, Error *error);
/* Checks layout.* in the same way; these settings are for other layouts when the layout is chosen
 * automatically. */
bool needs_check_layout(const Config *config, const Config *said, Error *error);
/* Resets settings of layout.* that have no effect to their defaults. */
void needs_drop_layout(Config *config);
/* Returns "optimizer.momentum=0.9 (needs optimizer.name=muon), ...": all other settings of `said`
 * without effect; NULL: none. The caller frees it. With `facts` NULL, only the settings decide. */
char *needs_list_idle(const Config *config, const Config *said, const RunFacts *facts);
/* Prints needs_list_idle as one warning, if it is not empty. */
void needs_warn(const Config *config, const Config *said, const RunFacts *facts);
/* Writes "needs model.family=mpt" for the explanation of a setting; "" if it needs nothing. */
void needs_explain(const Option *option, char *text, size_t size);
