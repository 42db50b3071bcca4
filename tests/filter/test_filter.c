/* Tests of the rules that drop documents: expressions, statistics of texts, fastText models against the scores of the package
 * (tests/golden/fasttext_models.py), and what packing does with a verdict. tests/golden/check_filters.py compares all of it with
 * other code on random documents. */
#include <math.h>
#include <zstd.h>

#include "support/data_files.h"

#include "base/json_reader.h"
#include "base/rng.h"
#include "data/pack.h"
#include "filter/filter_internal.h"
#include "support/mentions.h"

/* A test runs in a folder of its own; golden files are named from the repository. */
static char golden[4096];

static DocumentFilter *open_filter(FilterOptions options) {
    DocumentFilter *filter;
    Error error = {0};
    if (!options.where) options.where = "";
    if (!options.rules) options.rules = "";
    if (!options.bad_words) options.bad_words = "";
    if (!options.fasttext) options.fasttext = "";
    if (!options.decontaminate) options.decontaminate = "";
    if (!filter_open(&options, &filter, &error)) fail_msg("%s", error.message);
    return filter;
}

/* What the first rule that a record breaks saw, or NULL. */
static const char *judge(const char *where, const char *record, const char *text) {
    static char value[FILTER_VALUE];
    DocumentFilter *filter = open_filter((FilterOptions){.where = where});
    FilterJudge *own = filter_judge_open(filter);
    Error error = {0};
    json_auto_t *json = json_parse(record, strlen(record), 0, &error);
    assert_non_null(json);
    int rule = filter_judge(own, json, text, strlen(text), value);
    filter_judge_free(own);
    filter_free(filter);
    return rule < 0 ? NULL : value;
}

static void an_expression_holds_or_shows_what_it_saw(void **state) {
    (void)state;
    static const struct {
        const char *where, *record, *seen; /* NULL: it holds */
    } cases[] = {
        {"score > 0.8", "{\"score\": 0.81}", NULL},
        {"score > 0.8", "{\"score\": 0.8}", "0.8"},
        {"score > 0.8", "{}", "null"},
        {"score > 0.8", "{\"score\": \"0.9\"}", NULL},
        {"score > 0.8", "{\"score\": \"high\"}", "\"high\""},
        {"score > 0.8", "{\"score\": [1]}", "\"a list or an object\""},
        {"score != 3", "{}", NULL},
        {"score == null", "{\"score\": null}", NULL},
        {"-1e3 < n and n <= 007", "{\"n\": 7}", NULL},
        {"lang == 'en'", "{\"lang\": \"en\"}", NULL},
        {"lang == \"a\\\"b\"", "{\"lang\": \"a\\\"b\"}", NULL},
        {"lang < 'f'", "{\"lang\": \"ff\"}", "\"ff\""},
        {"lang < 'ff'", "{\"lang\": \"f\"}", NULL},
        {"lang in [\"en\", 'de', 3, null]", "{\"lang\": 3}", NULL},
        {"lang in [\"en\"]", "{\"lang\": \"english\"}", "\"english\""},
        {"meta.source.name == \"web\"", "{\"meta\": {\"source\": {\"name\": \"web\"}}}", NULL},
        {"meta.source.name == \"web\"", "{\"meta\": 3}", "null"},
        {"`a b`.`c.d` > 1", "{\"a b\": {\"c.d\": 2}}", NULL},
        {"clean", "{\"clean\": true}", NULL},
        {"clean", "{\"clean\": 1}", "1"},
        {"not clean", "{\"clean\": true}", "true"},
        {"not clean or n > 1", "{\"clean\": true, \"n\": 2}", NULL},
        {"a or b and c", "{\"a\": true, \"b\": false, \"c\": false}", NULL},
        {"(a or b) and c", "{\"a\": true, \"b\": false, \"c\": false}", "false"},
        {"notes == 1 and android == 2", "{\"notes\": 1, \"android\": 2}", NULL}, /* words that begin as operators do */
        {"x == 18446744073709551615", "{\"x\": 18446744073709551615}", NULL},
        {"text.words == 3 and text.characters == 14", "{}", NULL},
        {"x >= 5", "{\"x\": \"5\\u0000x\"}", "\"5\\u0000x\""},
        {"x >= 5", "{\"x\": \"inf\"}", "\"inf\""},
        {"x >= 5", "{\"x\": \"0x7\"}", "\"0x7\""},
        {"x >= 5", "{\"x\": \"+7.5e0\"}", NULL},
        {"x >= 5", "{\"x\": Infinity}", NULL},
        {"x >= 5", "{\"x\": -1e400}", "\"not finite\""},
        {"x >= 5", "{\"x\": NaN}", "\"not finite\""},
        {"x >= 5", "{\"x\": 99999999999999999999}", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *seen = judge(cases[i].where, cases[i].record, "drei W\xc3\xb6rter 12");
        bool same = seen && cases[i].seen ? !strcmp(seen, cases[i].seen) : seen == cases[i].seen;
        if (!same) fail_msg("%s of %s saw %s", cases[i].where, cases[i].record, seen ? seen : "nothing");
    }
}

static void an_expression_that_is_none_is_refused_with_its_place(void **state) {
    (void)state;
    static const struct {
        FilterOptions options;
        const char *says;
    } cases[] = {
        {{"score >", "", "", "", ""}, "character 8"},
        {{"score > > 3", "", "", "", ""}, "character 9"},
        {{"(score > 3", "", "", "", ""}, ") missing 11"},
        {{"score > 3)", "", "", "", ""}, "and or 10"},
        {{"score 3", "", "", "", ""}, "and or 7"},
        {{"score = 3", "", "", "", ""}, "write == 7"},
        {{"lang == 'en", "", "", "", ""}, "quote"},
        {{"lang in 'en'", "", "", "", ""}, "list"},
        {{"lang in ['en'", "", "", "", ""}, "]"},
        {{"a. > 3", "", "", "", ""}, "point"},
        {{"3x > 2", "", "", "", ""}, "number"},
        {{"text.wordz > 2", "", "", "", ""}, "text.wordz words word_length"},
        {{"", "gopher,c5", "", "", ""}, "c5 gopher c4 fineweb"},
        {{"", "", "absent.txt", "", ""}, "absent.txt"},
        {{"", "", "", "", "absent.jsonl"}, "absent.jsonl"},
        {{"lang.label == 'en'", "", "", "lang", ""}, "NAME:FILE"},
        {{"lang.label == 'en'", "", "", "lang:absent.bin", ""}, "absent.bin"},
        {{"", "", "", "lang:absent.bin", ""}, "fasttext where"},
        {{"text.words > 1", "", "", "text:absent.bin", ""}, "text taken"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        DocumentFilter *filter;
        Error error = {0};
        assert_false(filter_open(&cases[i].options, &filter, &error));
        assert_null(filter);
        if (!mentions(error.message, cases[i].says)) fail_msg("%s does not say %s", error.message, cases[i].says);
    }
    char deep[400];
    memset(deep, '(', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    DocumentFilter *filter;
    Error error = {0};
    FilterOptions options = {deep, "", "", "", ""};
    assert_false(filter_open(&options, &filter, &error));
    assert_true(mentions(error.message, "deep"));
}

/* The numbers are those of tests/golden/check_filters.py for the same text. */
static void statistics_are_those_of_the_papers(void **state) {
    (void)state;
    static const char text[] = "The cat and the hat ...\n- one two three four five one two three four five\n\nEnd # of it.\n\nEnd # of it.";
    static const struct {
        const char *name;
        double value;
    } cases[] = {{"bytes", 101}, {"characters", 101}, {"words", 21}, {"word_length", 69.0 / 21}, {"hashes", 2.0 / 25},
        {"ellipses", 1.0 / 25}, {"letter_words", 21.0 / 25}, {"stop_words", 3}, {"lines", 4}, {"bullet_lines", 0.25},
        {"ellipsis_lines", 0.25}, {"closed_lines", 0.75}, {"short_lines", 0.75}, {"repeated_lines", 0.25},
        {"repeated_line_characters", 12.0 / 101}, {"repeated_paragraphs", 1.0 / 3}, {"repeated_paragraph_characters", 12.0 / 101},
        {"sentences", 3}, {"braces", 0}, {"lorem_ipsum", 0}, {"top_2_words", 14.0 / 101}, {"top_3_words", 26.0 / 101},
        {"repeated_5_words", 19.0 / 101}, {"repeated_6_words", 0}};
    TextStatistics *own = statistics_open();
    statistics_start(own, text, strlen(text));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int statistic = statistic_find(cases[i].name, strlen(cases[i].name));
        assert_true(statistic >= 0);
        double value = statistics_read(own, statistic);
        if (value - cases[i].value > 1e-12 || value - cases[i].value < -1e-12) fail_msg("%s is %g", cases[i].name, value);
    }
    statistics_start(own, "", 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_true(statistics_read(own, statistic_find(cases[i].name, strlen(cases[i].name))) == 0);
    statistics_free(own);
}

/* More different runs than there are slots at first. */
static void a_long_text_has_the_runs_that_it_repeats(void **state) {
    (void)state;
    enum { WORDS = 20000 };
    char *text = memory_allocate(WORDS * 2 * 8);
    size_t used = 0, letters = 0;
    for (int i = 0; i < 2 * WORDS; i++) {
        int size = sprintf(text + used, "w%d ", i % WORDS);
        letters += i < WORDS ? (size_t)size - 1 : 0;
        used += (size_t)size;
    }
    TextStatistics *own = statistics_open();
    for (int i = 0; i < 2; i++) {
        statistics_start(own, text, used);
        assert_true(statistics_read(own, statistic_find("top_2_words", 11)) == 10 / (double)used); /* "w0 w1", the first of all, twice */
        assert_true(statistics_read(own, statistic_find("repeated_5_words", 16)) == (double)letters / (double)used);
        assert_true(statistics_read(own, statistic_find("repeated_8_words", 16)) == (double)letters / (double)used);
    }
    statistics_free(own);
    free(text);
}

static void named_rules_are_expressions_that_hold_for_prose(void **state) {
    (void)state;
    char value[FILTER_VALUE], *text = memory_allocate(1 << 16);
    size_t used = 0;
    static const char *const words[] = {"the", "of", "and", "ship", "harbour", "water", "old", "captain", "looked", "north", "was", "cold",
        "a", "letter", "from", "town", "came", "late", "with", "news", "about", "sails", "men", "worked", "until", "night"};
    for (int i = 0; i < 600; i++) {
        const char *word = words[rng_bits(5, 1, (uint64_t)i).word[0] % (sizeof words / sizeof *words)];
        used += (size_t)sprintf(text + used, "%s%s", word, i % 60 == 59 ? ".\n\n" : i % 12 == 11 ? ". " : " ");
    }
    DocumentFilter *filter = open_filter((FilterOptions){.rules = "gopher,c4,fineweb"});
    FilterJudge *own = filter_judge_open(filter);
    int rule = filter_judge(own, NULL, text, used, value);
    if (rule >= 0) fail_msg("%s broke %s with %s", text, filter_rule(filter, rule), value);
    assert_int_equal(filter_rules(filter), named_rule_count);
    rule = filter_judge(own, NULL, "Too short.", 10, value);
    assert_string_equal(filter_rule(filter, rule), "gopher.words");
    assert_string_equal(value, "2");
    filter_judge_free(own);
    filter_free(filter);
    free(text);
}

static void bad_words_are_whole_words_in_either_case(void **state) {
    (void)state;
    static const struct {
        const char *text, *found;
    } cases[] = {{"a darn thing", "\"darn\""}, {"DARN!", "\"DARN\""}, {"darned", NULL},
        {"the two-word\n phrase here", "\"two-word\\n phrase\""}, {"two words phrase", NULL}, {"", NULL},
        {"\xc3\xa4rger", "\"\\u00E4rger\""}};
    char value[FILTER_VALUE];
    write_text("words.txt", "darn\n\ntwo word phrase\r\n\xc3\xa4rger");
    DocumentFilter *filter = open_filter((FilterOptions){.bad_words = "words.txt"});
    FilterJudge *own = filter_judge_open(filter);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int rule = filter_judge(own, NULL, cases[i].text, strlen(cases[i].text), value);
        if (rule != (cases[i].found ? 0 : -1)) fail_msg("%s: %d", cases[i].text, rule);
        if (cases[i].found) assert_string_equal(value, cases[i].found);
    }
    filter_judge_free(own);
    filter_free(filter);
}

static void documents_with_runs_of_an_evaluation_set_are_dropped(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool dropped;
    } cases[] = {{"It says: One, two three four five six seven eight nine ten eleven twelve THIRTEEN!", true},
        {"one two three four five six seven eight nine ten eleven twelve and thirteen", false},
        {"two three four five six seven eight nine ten eleven twelve thirteen fourteen", true},
        {"a short answer of no more than eight words", true}, {"a short answer of no more", false},
        {"only seven words are in this choice", false}, {"", false}};
    char value[FILTER_VALUE];
    write_text("set.jsonl", "{\"question\": \"one two three four five six seven eight nine ten eleven twelve thirteen fourteen\",\n");
    DocumentFilter *filter;
    Error error = {0};
    FilterOptions options = {"", "", "", "", "set.jsonl"};
    assert_false(filter_open(&options, &filter, &error));
    assert_true(mentions(error.message, "line 1 set.jsonl"));
    write_text("set.jsonl", "{\"question\": \"one two three four five six seven eight nine ten eleven twelve thirteen fourteen\"}\n\n"
                            "{\"id\": 3, \"choices\": [{\"text\": \"A short answer of no more than eight words.\"}, \"only seven words are "
                            "in this choice\"]}\n");
    filter = open_filter(options);
    FilterJudge *own = filter_judge_open(filter);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if ((filter_judge(own, NULL, cases[i].text, strlen(cases[i].text), value) == 0) != cases[i].dropped) fail_msg("%s", cases[i].text);
    filter_judge_free(own);
    filter_free(filter);
}

static void models_score_as_the_package_of_fasttext_does(void **state) {
    (void)state;
    SCOPED_FREE char *path = memory_format("%s/tests/golden/fasttext/scores.json", golden);
    Error error = {0};
    json_auto_t *file = json_read(path, ERROR_DATA, &error);
    const json_t *texts = json_object_get(file, "texts"), *scores, *each, *score;
    const char *name, *label;
    size_t at;
    int compared = 0;
    json_object_foreach(json_object_get(file, "scores"), name, scores) {
        SCOPED_FREE char *place = memory_format("%s/tests/golden/fasttext/%s.bin", golden, name);
        Fasttext *model = fasttext_open(place, &error);
        if (!model) fail_msg("%s", error.message);
        int32_t labels = fasttext_labels(model);
        assert_int_equal(labels, 3);
        float hidden[4], found[3];
        assert_int_equal(fasttext_width(model), 4);
        json_array_foreach(scores, at, each) {
            const json_t *text = json_array_get(texts, at);
            fasttext_score(model, json_string_value(text), json_string_length(text), hidden, found);
            for (int32_t i = 0; i < labels; i++) {
                json_object_foreach((json_t *)each, label, score) {
                    if (strcmp(label, fasttext_label(model, i)) != 0) continue;
                    double difference = (double)found[i] - json_real_value(score);
                    if (difference > 2e-6 || difference < -2e-6)
                        fail_msg("%s of \"%s\": %s is %g", name, json_string_value(text), label, (double)found[i]);
                    compared++;
                }
            }
        }
        fasttext_free(model);
    }
    assert_true(compared >= 4 * 10 * 3);
}

static void a_model_that_is_cut_or_changed_is_refused_or_read_in_bounds(void **state) {
    (void)state;
    SCOPED_FREE char *path = memory_format("%s/tests/golden/fasttext/tree.bin", golden);
    size_t size;
    unsigned char *bytes = read_bytes(path, &size);
    float hidden[256], scores[256];
    Error error = {0};
    for (size_t cut = 0; cut < size; cut += cut < 400 ? 1 : 13) {
        write_bytes("cut.bin", bytes, cut);
        assert_null(fasttext_open("cut.bin", &error));
        assert_int_equal(error.code, ERROR_DATA);
    }
    int opened = 0;
    for (size_t at = 0; at < size && at < 500; at++) {
        unsigned char was = bytes[at];
        bytes[at] ^= 0x81;
        write_bytes("cut.bin", bytes, size);
        bytes[at] = was;
        Fasttext *model = fasttext_open("cut.bin", &error);
        if (model && fasttext_width(model) <= 256 && fasttext_labels(model) <= 256)
            fasttext_score(model, "the cat sat", 11, hidden, scores), opened++;
        fasttext_free(model);
    }
    assert_true(opened > 50);
    const float nan = NAN;
    memcpy(bytes + size - sizeof nan, &nan, sizeof nan); /* the last weight: finite numbers alone are a model */
    write_bytes("cut.bin", bytes, size);
    assert_null(fasttext_open("cut.bin", &error));
    assert_non_null(strstr(error.message, "damaged"));
    free(bytes);
}

static void two_models_have_two_names(void **state) {
    (void)state;
    SCOPED_FREE char *models = memory_format("lang:%s/tests/golden/fasttext/tree.bin,lang:other.bin", golden);
    FilterOptions options = {"lang.score > 0", "", "", models, ""};
    DocumentFilter *filter;
    Error error = {0};
    assert_false(filter_open(&options, &filter, &error));
    assert_true(mentions(error.message, "lang:other.bin taken"));
}

static void a_field_may_have_the_name_of_a_rule(void **state) {
    (void)state;
    write_text("words", "bad\n");
    DocumentFilter *filter = open_filter((FilterOptions){
        .where = "bad_words and decontaminate and `gopher.words`", .rules = "gopher.top_2_words, gopher.words", .bad_words = "words"});
    static const char *const names[] = {
        "bad_words", "bad_words == true", "decontaminate == true", "`gopher.words`", "gopher.top_2_words", "gopher.words"};
    assert_int_equal(filter_rules(filter), 6);
    for (int i = 0; i < 6; i++) assert_string_equal(filter_rule(filter, i), names[i]);
    filter_free(filter);
}

/* -- Packing ------------------------------------------------------------------------------------------------------------- */

static PackResult pack(PackOptions options) {
    PackResult result;
    Error error = {0};
    if (!options.separator) options.separator = "";
    if (!pack_text(&options, &result, &error)) fail_msg("%s", error.message);
    return result;
}

/* The lines of what was dropped; the caller frees. */
static char *read_dropped(const char *path) {
    size_t size, total = 0;
    unsigned char *bytes = read_bytes(path, &size);
    enum { ROOM = 1 << 20 };
    char *text = memory_allocate(ROOM);
    for (size_t at = 0; at < size;) { /* frame by frame */
        size_t frame = ZSTD_findFrameCompressedSize(bytes + at, size - at);
        assert_false(ZSTD_isError(frame));
        size_t made = ZSTD_decompress(text + total, ROOM - 1 - total, bytes + at, frame);
        assert_false(ZSTD_isError(made));
        total += made;
        at += frame;
    }
    free(bytes);
    return text;
}

static void what_is_dropped_is_listed_with_rule_and_value(void **state) {
    (void)state;
    static const char *const inputs[] = {"a.jsonl", "b.jsonl", NULL};
    write_text("a.jsonl", "{\"text\": \"one two three four five six\", \"score\": 3}\n{\"text\": \"low\", \"score\": 1}\n{broken\n"
                          "{\"text\": \"one two three four five six\", \"score\": 4}\n");
    write_text(
        "b.jsonl", "{\"text\": \"One two three four five, six\", \"score\": 5}\n{\"text\": \"kept\", \"score\": 3}\n{\"score\": 9}\n");
    DocumentFilter *filter = open_filter((FilterOptions){.where = "score >= 3"});
    PackResult result = pack((PackOptions){.inputs = inputs, .output = "out", .filter = filter, .dedup = PACK_DEDUP_NEAR});
    filter_free(filter);
    assert_int_equal(result.documents, 2);
    assert_int_equal(result.records, 7);
    assert_int_equal(result.filtered, 1);
    assert_int_equal(result.left_out, 2);
    char *dropped = read_dropped("out.dropped.jsonl.zst");
    assert_string_equal(dropped,
        "{\"file\":\"a.jsonl\",\"line\":2,\"rule\":\"score >= 3\",\"value\":1}\n"
        "{\"file\":\"a.jsonl\",\"line\":3,\"rule\":\"broken JSON\",\"value\":\"line 1, column 8: string or '}' expected near 'broken'\"}\n"
        "{\"file\":\"a.jsonl\",\"line\":4,\"rule\":\"dedup=exact\",\"value\":null,\"repeats\":{\"file\":\"a.jsonl\",\"line\":1}}\n"
        "{\"file\":\"b.jsonl\",\"line\":1,\"rule\":\"dedup=near\",\"value\":null,\"repeats\":{\"file\":\"a.jsonl\",\"line\":1}}\n"
        "{\"file\":\"b.jsonl\",\"line\":3,\"rule\":\"missing field\",\"value\":\"text; it has score\"}\n");
    free(dropped);
}

static void values_that_are_not_utf8_or_have_a_nul_are_listed(void **state) {
    (void)state;
    static const char *const inputs[] = {"a.txt", "b.jsonl", NULL};
    write_text("words", "w\xe9rd\n");
    write_text("a.txt", "a good text\n%\none W\xe9rd\n");
    write_text("b.jsonl", "{\"text\": \"w\\u0000x w\"}\n");
    DocumentFilter *filter = open_filter((FilterOptions){.bad_words = "words"});
    pack((PackOptions){.inputs = inputs, .output = "out", .separator = "%", .filter = filter, .invalid = PACK_INVALID_KEEP});
    filter_free(filter);
    char *dropped = read_dropped("out.dropped.jsonl.zst");
    assert_string_equal(dropped, "{\"file\":\"a.txt\",\"line\":3,\"rule\":\"bad_words\",\"value\":\"W\xef\xbf\xbdrd\"}\n");
    free(dropped);
    filter = open_filter((FilterOptions){.where = "text == \"w\""});
    static const char *const records[] = {"b.jsonl", "c.jsonl", NULL};
    write_text("c.jsonl", "{\"text\": \"w\"}\n");
    pack((PackOptions){.inputs = records, .output = "out", .filter = filter, .overwrite = true});
    filter_free(filter);
    dropped = read_dropped("out.dropped.jsonl.zst");
    assert_string_equal(dropped, "{\"file\":\"b.jsonl\",\"line\":1,\"rule\":\"text == \\\"w\\\"\",\"value\":\"w\\u0000x w\"}\n");
    free(dropped);
}

/* The results are those of datatrove's C4QualityFilter; "" is a text without lines that stay. */
static void lines_that_break_rules_are_removed(void **state) {
    (void)state;
    static const struct {
        const char *rules, *text, *left;
    } cases[] = {
        {"c4", "  One whole line here. \n\nNo end here\r\nIt ends so...\xe2\x80\xa8Two more words!\xc2\x85 \"Is it?\"\n",
            "One whole line here.\nTwo more words!"},
        {"c4", "Please enable JavaScript to go on.\nWe use cookies on this site.\nOur Terms of Use apply here.\nThis line stays here.",
            "This line stays here."},
        {"c4", "A fact is so.[1]\nA fact is so. [12]\nThe[edit] fact[citation needed][] is so.\nIt [x] [1 is so.",
            "A fact is so.\nThe fact is so.\nIt [x] [1 is so."},
        {"c4", "Two [1] words.\nTwo words.\nNow three words.", "Two  words.\nNow three words."},
        {"c4", "no end\nnothing", ""},
        {"c4.few_words", "two words\n\nnow three words\n", "now three words"},
        {"c4.javascript,c4.open_lines", "javascript: x.\nopen\nWord.", "Word."},
        {"c4.citations", "\xe3\x80\x80[1]a[1][2\xe3\x80\x80", "a[2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        DocumentFilter *filter = open_filter((FilterOptions){.lines = cases[i].rules});
        int32_t counts[LINE_RULES] = {0};
        SCOPED_FREE char *text = memory_copy_string(cases[i].text);
        size_t size = filter_edit(filter, text, strlen(text), counts);
        if (size != strlen(cases[i].left) || memcmp(text, cases[i].left, size) != 0)
            fail_msg("%s of \"%s\" leaves \"%.*s\"", cases[i].rules, cases[i].text, (int)size, text);
        filter_free(filter);
    }
    for (int more = 0; more < 2; more++) { /* a word of 1,000 characters, and of one more */
        DocumentFilter *filter = open_filter((FilterOptions){.lines = "c4.long_words"});
        int32_t counts[LINE_RULES] = {0};
        char text[3 * 1001 + 4];
        for (int c = 0; c < 1000 + more; c++) memcpy(text + 3 * c, "\xe6\x9c\xac", 3);
        assert_int_equal(filter_edit(filter, text, 3 * (size_t)(1000 + more), counts), more ? 0 : 3000);
        assert_int_equal(counts[0], more);
        filter_free(filter);
    }
    DocumentFilter *filter;
    Error error = {0};
    assert_false(filter_open(&(FilterOptions){"", "", "", "", "", "c4.lines"}, &filter, &error));
    assert_true(mentions(error.message, "c4.lines is not known: choose of c4 for all, c4.long_words"));
}

/* Rules see what the removal of lines leaves, and a document without lines is left out as empty. */
static void documents_are_judged_by_the_lines_that_stay(void **state) {
    (void)state;
    static const char *const inputs[] = {"a.jsonl", "b.txt", NULL};
    write_text("a.jsonl",
        "{\"text\": \"One line stays here.\\nopen\"}\n{\"text\": \"open\"}\n{\"text\": \"A {brace} is here.\\nSo is more.\"}\n"
        "{\"text\": \"{open}\\nOne line stays here.\"}\n");
    write_text("b.txt", "One \xff line here.\nopen\n");
    DocumentFilter *filter = open_filter((FilterOptions){.lines = "c4", .rules = "c4.braces"});
    PackResult result = pack((PackOptions){.inputs = inputs, .output = "out", .filter = filter, .dedup = PACK_DEDUP_EXACT});
    filter_free(filter);
    assert_int_equal(result.documents, 2);
    assert_int_equal(result.records, 5);
    assert_int_equal(result.filtered, 1);
    assert_int_equal(result.left_out, 1); /* what is left of the fourth is the first */
    assert_int_equal(result.bad[PACK_BAD_EMPTY], 1);
    assert_shard_text("out", "One line stays here.|One \xef\xbf\xbd line here.|");
    size_t size;
    SCOPED_FREE char *record = (char *)read_bytes("out.pack.json", &size);
    assert_holds(record, "\"c4.open_lines\": 4");
}

/* A second packing of a folder does not read the lists of the first, and one without rules removes them. */
static void lists_of_documents_are_no_input_and_go_with_their_shard(void **state) {
    (void)state;
    static const char *const inputs[] = {"in", NULL};
    assert_int_equal(mkdir("in", 0777), 0);
    write_text("in/a.jsonl", "{\"text\": \"one\", \"n\": 1}\n{\"text\": \"two\", \"n\": 2}\n");
    DocumentFilter *filter = open_filter((FilterOptions){.where = "n > 1"});
    for (int i = 0; i < 4; i++) {
        PackOptions options = {
            .inputs = inputs, .output = i < 2 ? "in/out" : "in/folder", .filter = filter, .dedup = PACK_DEDUP_EXACT, .overwrite = true};
        options.shard_tokens = i < 2 ? 0 : 100;
        PackResult result = pack(options);
        assert_int_equal(result.records, 2);
        assert_int_equal(result.files, 1);
    }
    filter_free(filter);
    assert_int_equal(access("in/out.dropped.jsonl.zst", F_OK) | access("in/out.dedup", F_OK), 0);
    pack((PackOptions){.inputs = inputs, .output = "in/out", .overwrite = true});
    assert_int_equal(access("in/out.dropped.jsonl.zst", F_OK), -1);
    assert_int_equal(access("in/out.dedup", F_OK), -1);
}

static void parquet_and_json_lines_are_judged_alike(void **state) {
    (void)state;
    static const char *const names[] = {
        "texts.jsonl", "texts-dictionary-snappy.parquet", "texts-plain-zstd-v2.parquet", "texts-duckdb.parquet"};
    int64_t tokens = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        SCOPED_FREE char *path = memory_format("%s/tests/golden/parquet/%s", golden, names[i]), *output = memory_format("out%zu", i);
        const char *inputs[] = {path, NULL};
        DocumentFilter *filter = open_filter((FilterOptions){.where = "score > 1.5 and flag == true and text.characters < 100"});
        PackResult result = pack((PackOptions){.inputs = inputs, .output = output, .filter = filter});
        filter_free(filter);
        if (i == 0) tokens = result.train_tokens;
        assert_true(tokens > 0 && result.filtered > 10);
        assert_int_equal(result.train_tokens, tokens);
    }
}

/* The same records as a table, as JSON lines, and in a folder with a text and a table that rules cannot judge. */
static void tables_and_json_lines_are_judged_alike(void **state) {
    (void)state;
    FILE *table = fopen("t.csv", "w"), *lines = fopen("t.jsonl", "w");
    assert_true(table && lines);
    fprintf(table, "\xef\xbb\xbfid,score,text,lang\r\n");
    for (int i = 0; i < 500; i++) {
        int score = (int)(rng_bits(4, 1, (uint64_t)i).word[0] % 9);
        const char *lang = i % 3 ? "en" : "de, \"at\"";
        fprintf(table, "%d,%d,\"text %d, of \"\"%d\"\"\",%s\r\n", i, score, i, score, i % 3 ? "en" : "\"de, \"\"at\"\"\"");
        fprintf(lines, "{\"text\": \"text %d, of \\\"%d\\\"\", \"score\": %d, \"lang\": \"%s\"}\n", i, score, score,
            i % 3 ? lang : "de, \\\"at\\\"");
    }
    assert_int_equal(fclose(table), 0);
    assert_int_equal(fclose(lines), 0);
    static const char *const rules[] = {"score > 4.5 and lang == \"en\"", "lang == 'de, \"at\"' or score == 0"};
    for (int i = 0; i < 2; i++) {
        DocumentFilter *filter = open_filter((FilterOptions){.where = rules[i]});
        PackResult one =
            pack((PackOptions){.inputs = (const char *const[]){"t.csv", NULL}, .output = "a", .filter = filter, .overwrite = true});
        PackResult two =
            pack((PackOptions){.inputs = (const char *const[]){"t.jsonl", NULL}, .output = "b", .filter = filter, .overwrite = true});
        filter_free(filter);
        assert_true(one.documents > 50 && one.filtered > 50);
        assert_int_equal(one.documents, two.documents);
        assert_int_equal(one.train_tokens, two.train_tokens);
    }
    assert_int_equal(mkdir("in", 0777), 0);
    write_text("in/a.txt", "a text\n");
    write_text("in/b.csv", "text,id\na text,3\n");
    write_text("in/c.csv", "score,text\n5,kept\n4,dropped\n");
    write_text("in/d.csv", "text,score\nalso kept,7\n");
    DocumentFilter *filter = open_filter((FilterOptions){.where = "score >= 5"});
    PackResult result = pack((PackOptions){.inputs = (const char *const[]){"in", NULL}, .output = "out", .filter = filter});
    filter_free(filter);
    assert_int_equal(result.documents, 2);
    assert_int_equal(result.filtered, 1);
    size_t size;
    SCOPED_FREE char *record = (char *)read_bytes("out.pack.json", &size);
    assert_holds(record, "text without the fields that a rule reads");
    assert_holds(record, "a table without a column that a rule reads");
}

static void a_rule_that_cannot_be_judged_is_refused(void **state) {
    (void)state;
    static const char *const text[] = {"in.txt", NULL}, *const table[] = {"in.csv", NULL}, *const lines[] = {"in.jsonl", NULL};
    static const struct {
        const char *const *inputs;
        const char *where, *says;
    } cases[] = {{text, "score > 1", "in.txt fields rule"}, {table, "id > 1", "in.csv column rule columns text, score"},
        {lines, "score > 5", "left rules 2"}};
    write_text("in.txt", "a text\n");
    write_text("in.csv", "text,score\na text,3\n");
    write_text("in.jsonl", "{\"text\": \"a\", \"score\": 3}\n{\"text\": \"b\", \"score\": 4}\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        PackResult result;
        Error error = {0};
        DocumentFilter *filter = open_filter((FilterOptions){.where = cases[i].where});
        PackOptions options = {.inputs = cases[i].inputs, .output = "out", .separator = "", .filter = filter};
        assert_false(pack_text(&options, &result, &error));
        if (!mentions(error.message, cases[i].says)) fail_msg("%s does not say %s", error.message, cases[i].says);
        filter_free(filter);
    }
}

int main(void) {
    if (!getcwd(golden, sizeof golden)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_expression_holds_or_shows_what_it_saw),
        cmocka_unit_test(an_expression_that_is_none_is_refused_with_its_place),
        cmocka_unit_test(statistics_are_those_of_the_papers),
        cmocka_unit_test(a_long_text_has_the_runs_that_it_repeats),
        cmocka_unit_test(named_rules_are_expressions_that_hold_for_prose),
        IN_FOLDER(bad_words_are_whole_words_in_either_case),
        IN_FOLDER(documents_with_runs_of_an_evaluation_set_are_dropped),
        cmocka_unit_test(models_score_as_the_package_of_fasttext_does),
        IN_FOLDER(a_model_that_is_cut_or_changed_is_refused_or_read_in_bounds),
        IN_FOLDER(two_models_have_two_names),
        IN_FOLDER(a_field_may_have_the_name_of_a_rule),
        IN_FOLDER(what_is_dropped_is_listed_with_rule_and_value),
        IN_FOLDER(values_that_are_not_utf8_or_have_a_nul_are_listed),
        cmocka_unit_test(lines_that_break_rules_are_removed),
        IN_FOLDER(documents_are_judged_by_the_lines_that_stay),
        IN_FOLDER(lists_of_documents_are_no_input_and_go_with_their_shard),
        IN_FOLDER(parquet_and_json_lines_are_judged_alike),
        IN_FOLDER(tables_and_json_lines_are_judged_alike),
        IN_FOLDER(a_rule_that_cannot_be_judged_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
