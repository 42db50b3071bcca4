/* What settings need to have an effect: one table (needs.c) of conditions, for refusals, warnings, --help and a test that
 * walks it. A setting that is not in it has an effect in every run.
 *
 * Commands give `said`, in which a setting has a value other than its default only if this start gave it, by its file or its
 * arguments: what a run has remembered, or a model brought, is not held against the start. */
#pragma once

#include "config/config.h"

/* What conditions ask that settings do not tell, known once a run starts. */
typedef struct RunFacts {
    bool has_ranks;      /* several */
    bool repeats;        /* several ranks have some of the same matrices that are trained, whose gradients they sum */
    bool shares_weights; /* ZeRO divides some of these, if layout.zero says so */
    bool exceeds_window; /* some sequences are longer than model.window */
    bool has_rounds;     /* a step has several microbatches, of which each rank has whole weights */
    bool has_cpu;        /* computes on a CPU */
    bool packs;          /* some data are text, and not packed before */
    bool splits;         /* all training data are text, of one source */
    bool has_bucket;     /* some data are in a store of s3:// */
    bool has_valid;      /* there are validation data */
    bool has_tokenizer;  /* that of the data is known, and not bytes */
    bool writes;         /* evaluations may write text: tokens are known */
    bool continues;      /* the run was started before */
    bool leaves_theta;   /* some phase of the data has no rope_theta of its own */
    bool leaves_ramp;    /* the first phase of the data has no ramp of its own */
} RunFacts;

/* A row of the table. */
typedef struct Need {
    const char *name; /* of an option, which may have several rows */
    const char *what; /* continues "has no effect without" */
    bool (*met)(const Config *config,
        const RunFacts *
            facts); /* `facts` NULL: of rows that do not ask them. `met` and `what` NULL: a family or an optimizer whose rule lists the setting */
    enum { NEED_OR_REFUSE, NEED_OR_WARN, NEED_AT_START } answer; /* at start: a warning too, since it asks facts */
} Need;
typedef struct NeedTable {
    const Need *rows;
    size_t count;
} NeedTable;
extern const NeedTable needs_table;
/* What the row's setting needs, as in "model.family=zaya or llama", for the caller to free. */
char *needs_describe(const Need *need);

/* ERROR_USAGE names the first setting of `said` that is for another kind of run, but for those of layout.*. */
bool needs_check(const Config *config, const Config *said, Error *error);
/* Likewise for layout.*, whose settings are for other layouts where one is chosen. */
bool needs_check_layout(const Config *config, const Config *said, Error *error);
/* Gives settings of layout.* that have no effect their defaults. */
void needs_drop_layout(Config *config);
/* "optimizer.momentum=0.9 (needs optimizer.name=muon), ...": all other settings of `said` without effect, for the caller to
 * free; NULL: there are none. `facts` NULL: as far as settings tell. */
char *needs_list_idle(const Config *config, const Config *said, const RunFacts *facts);
/* Prints needs_list_idle as one warning, if any. */
void needs_warn(const Config *config, const Config *said, const RunFacts *facts);
/* "needs model.family=mpt", in the explanation of a setting; "" where it needs nothing. */
void needs_explain(const Option *option, char *text, size_t size);
