/* The work of chat templates: every filter, test, method, function and operator of the language charges the bytes and
 * elements that it touches or makes, so that the budget of a rendering bounds its time. The names come from the tables of
 * the interpreter. Each has a row here with an expression on large values; a name without a row fails. */
#include "support/files.h"

#include "base/error.h"
#include "base/scope.h"
#include "jinja/jinja_internal.h"
#include "support/mentions.h"

/* The variables `big` and `same` have SIZE bytes each, at two addresses. `many` and `keyed` have SIZE / JINJA_STEP
 * elements. `few` maps eight names of SIZE / 8 bytes, which begin alike. */
enum { SIZE = 1 << 18, ELEMENTS = SIZE / JINJA_STEP, FEW = 8 };

static json_t *large_variables(void) {
    SCOPED_FREE char *text = memory_allocate(SIZE + 1);
    SCOPED_FREE char *name = memory_allocate(SIZE / FEW + 1);
    json_t *variables = json_object(), *many = json_array(), *texts = json_array(), *keyed = json_object(), *few = json_object();
    memset(text, 'a', SIZE);
    memset(name, 'n', SIZE / FEW);
    json_object_set_new(variables, "big", json_stringn(text, SIZE));
    json_object_set_new(variables, "same", json_stringn(text, SIZE));
    for (int i = 0; i < ELEMENTS; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        json_array_append_new(many, json_integer(i));
        json_array_append_new(texts, json_string(key));
        json_object_set_new(keyed, key, json_integer(i));
    }
    for (int i = 0; i < FEW; i++) {
        name[SIZE / FEW - 1] = (char)('0' + i);
        json_object_set_new(few, name, json_integer(i));
        if (i == FEW - 1) json_object_set_new(variables, "name", json_string(name));
    }
    json_object_set_new(variables, "many", many);
    json_object_set_new(variables, "texts", texts);
    json_object_set_new(variables, "keyed", keyed);
    json_object_set_new(variables, "few", few);
    return variables;
}

static json_t *variables;

/* True: rendered within `work`. Any failure but a spent budget fails the test. */
static bool renders_within(const char *source, int64_t work) {
    SCOPED(chat_text_free) ChatText text = {0};
    Error error = {0};
    ChatTemplate *template = chat_template_parse(source, strlen(source), "t", &error);
    bool good = template && jinja_render(template, variables, 0, work, &text, &error);
    chat_template_free(template);
    if (!good && !mentions(error.message, "template")) fail_msg("%s: %s", source, error.message);
    return good;
}

/* The least budget of a rendering that does nothing with the variables. */
static int64_t idle_work(void) {
    int64_t low = 0, high = JINJA_WORK;
    while (high - low > 256) {
        int64_t middle = low + (high - low) / 2;
        if (renders_within("", middle)) high = middle;
        else low = middle;
    }
    return high;
}

typedef struct Row { const char *name, *expression; /* NULL: its work is the same for all values */ } Row;

static const Row filters[] = {{"abs"}, {"capitalize", "big|capitalize"}, {"count", "big|count"}, {"d"}, {"default"},
    {"dictsort", "keyed|dictsort"}, {"first", "big|first"}, {"float"}, {"int", "(' ' * 262144 + '1')|int"}, {"items", "keyed|items"},
    {"join", "texts|join"}, {"last", "big|last"}, {"length", "big|length"}, {"list", "many|list"}, {"lower", "big|lower"},
    {"map", "many|map('abs')"}, {"reject", "many|reject('odd')"}, {"rejectattr", "texts|rejectattr('a')"},
    {"replace", "big|replace('b', 'c')"}, {"reverse", "big|reverse"}, {"safe"}, {"select", "many|select('odd')"},
    {"selectattr", "texts|selectattr('a')"}, {"sort", "many|sort"}, {"string", "many|string"}, {"title", "big|title"},
    {"tojson", "big|tojson"}, {"trim", "big|trim('b')"}, {"upper", "big|upper"}, {NULL}};

static const Row tests[] = {{"boolean"}, {"callable"}, {"defined"}, {"divisibleby"}, {"eq", "big is eq(same)"},
    {"equalto", "many is equalto(many|list)"}, {"even"}, {"false"}, {"float"}, {"ge", "big is ge(same)"},
    {"greaterthan", "big is greaterthan(same)"}, {"gt", "big is gt(same)"}, {"in", "'b' is in(big)"}, {"integer"}, {"iterable"},
    {"le", "big is le(same)"}, {"lessthan", "big is lessthan(same)"}, {"lt", "big is lt(same)"}, {"mapping"}, {"ne", "big is ne(same)"},
    {"none"}, {"number"}, {"odd"}, {"sameas"}, {"sequence"}, {"string"}, {"true"}, {"undefined"}, {"==", "[big]|select('==', same)|list"},
    {"!=", "[big]|select('!=', same)|list"}, {"<", "[big]|select('<', same)|list"}, {"<=", "[big]|select('<=', same)|list"},
    {">", "[big]|select('>', same)|list"}, {">=", "[big]|select('>=', same)|list"}, {NULL}};

static const Row text_methods[] = {{"capitalize", "big.capitalize()"}, {"count", "big.count('b')"}, {"endswith", "big.endswith(same)"},
    {"find", "big.find('b')"}, {"join", "' '.join(texts)"}, {"lower", "big.lower()"}, {"lstrip", "big.lstrip()"},
    {"removeprefix", "big.removeprefix(same)"}, {"removesuffix", "big.removesuffix(same)"}, {"replace", "big.replace('b', 'c')"},
    {"rsplit", "big.rsplit('b', 1)"}, {"rstrip", "big.rstrip('ab')"}, {"split", "big.split('b')"}, {"splitlines", "big.splitlines()"},
    {"startswith", "big.startswith((same,))"}, {"strip", "big.strip()"}, {"title", "big.title()"}, {"upper", "big.upper()"}, {NULL}};

static const Row dict_methods[] = {{"get", "few.get(name)"}, {"items", "keyed.items()"}, {"keys"}, {"values"}, {NULL}};
static const Row list_methods[] = {{NULL}};

static const Row functions[] = {
    {"dict", "dict(keyed)"}, {"namespace", "namespace(keyed)"}, {"raise_exception"}, {"range", "range(4096)"}, {"strftime_now"}, {NULL}};

/* The operators and forms of the grammar, which have no table. */
static const Row forms[] = {{"==", "big == same"}, {"!=", "big != same"}, {"<", "big < same"}, {"<=", "big <= same"}, {">", "big > same"},
    {">=", "big >= same"}, {"in text", "'b' in big"}, {"in list", "-1 in many"}, {"in list of texts", "big in [same]"},
    {"in dict", "name in few"}, {"not in", "'b' not in big"}, {"+", "big + same"}, {"+ of lists", "many|list + many|list"},
    {"~", "big ~ same"}, {"*", "'a' * 262144"}, {"* of lists", "[1] * 4096"}, {"slice", "big[1:]"}, {"slice of a list", "(many|list)[::2]"},
    {"item", "big[1]"}, {"item of a dict", "few[name]"}, {"item of a list", "[(many|list)[1]]"}, {"equal lists", "[big] == [same]"},
    {"equal dicts", "{'a': big} == {'a': same}"}, {"long key", "{big: 1, same: 2}"}, {"text of a list", "many ~ ''"},
    {"JSON, sorted", "keyed|tojson(sort_keys=true)"}, {"JSON, indented", "many|tojson(indent=2)"}, {"long separator", "big.split(same)"},
    {"from the right", "big.rsplit(same ~ 'b', 1)"}, {"path", "[many]|map(attribute=big)|list"}, {NULL}};

/* The same name, else NULL. */
static const Row *row_of(const Row *rows, const char *name) {
    for (; rows->name; rows++)
        if (!strcmp(rows->name, name)) return rows;
    fail_msg("%s has no row in this test", name);
    return NULL;
}

/* Half of the bytes is the least that a touch of them may count: elements are as cheap as their share of an array. */
static void assert_charged(const Row *row) {
    static int64_t idle;
    if (!row->expression) return;
    if (!idle) idle = idle_work();
    SCOPED_FREE char *source = memory_format("{%% set x = %s %%}", row->expression);
    if (!renders_within(source, JINJA_WORK)) fail_msg("%s takes all of the budget", row->expression);
    if (renders_within(source, idle + SIZE / 2)) fail_msg("%s counts as less than %d bytes of work", row->expression, SIZE / 2);
}

static void every_filter_is_charged(void **state) {
    (void)state;
    for (const Filter *each = jinja_filters; each->name; each++) assert_charged(row_of(filters, each->name));
}

static void every_test_is_charged(void **state) {
    (void)state;
    for (const Test *each = jinja_tests; each->name; each++) assert_charged(row_of(tests, each->name));
}

static void every_method_is_charged(void **state) {
    (void)state;
    const MethodEntry *tables[] = {jinja_text_methods, jinja_dict_methods, jinja_list_methods};
    const Row *rows[] = {text_methods, dict_methods, list_methods};
    for (int i = 0; i < 3; i++)
        for (const MethodEntry *each = tables[i]; each->name; each++)
            if (each->call) assert_charged(row_of(rows[i], each->name));
}

static void every_function_is_charged(void **state) {
    (void)state;
    for (const JinjaFunction *each = jinja_functions; each->name; each++) assert_charged(row_of(functions, each->name));
}

static void every_form_is_charged(void **state) {
    (void)state;
    for (const Row *each = forms; each->name; each++) assert_charged(each);
}

/* Without the budget each of these would run for minutes or hours. */
static void hostile_work_ends(void **state) {
    (void)state;
    static const char *const sources[] = {"{{ [1] * 100000000000 }}", "{{ 'a' * 100000000000 }}",
        "{% for i in range(100000) %}{% if big == same %}{% endif %}{% endfor %}",
        "{% for i in range(100000) %}{% if ('b' ~ same) in big %}{% endif %}{% endfor %}",
        "{% for i in range(100000) %}{% if big|length %}{% endif %}{% endfor %}",
        "{% for i in range(100000) %}{% if few[name] %}{% endif %}{% endfor %}",
        "{% for i in range(100000) %}{% if many|sort %}{% endif %}{% endfor %}", "{{ many|tojson(indent=100000000000) }}",
        "{{ big.strip(same) }}"};
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) assert_false(renders_within(sources[i], JINJA_WORK / 16));
    assert_true(renders_within("{{ [] * 100000000000 }}{{ '' * 100000000000 }}{{ [1] * -100000000000 }}", JINJA_WORK));
}

/* A conversation of 8 MB, read by what templates do with contents, is far from the budget. */
static void long_conversations_are_rendered(void **state) {
    (void)state;
    assert_true(renders_within("{% set c = big * 32 %}{% for i in range(4) %}{{ c|trim }}{% if 'b' in c or c.startswith('<') %}x{% endif %}"
                               "{{ c.split('</think>')[-1].lstrip('\\n') }}{% endfor %}",
        JINJA_WORK));
}

/* Strings that follow one another were joined anew with each: a template of 1 MB took 30 GB. */
static void parsing_is_linear(void **state) {
    (void)state;
    enum { STRINGS = 240000 };
    SCOPED_FREE char *source = memory_allocate(4 * STRINGS + 16);
    char *at = source + sprintf(source, "{{ ");
    for (int i = 0; i < STRINGS; i++) at += sprintf(at, "'a' ");
    strcpy(at, "}}");
    SCOPED(chat_text_free) ChatText text = {0};
    Error error = {0};
    ChatTemplate *template = chat_template_parse(source, strlen(source), "t", &error);
    assert_non_null(template);
    assert_true(chat_template_render(template, variables, 0, &text, &error));
    assert_int_equal(text.size, STRINGS);
    chat_template_free(template);
}

int main(void) {
    const struct CMUnitTest all[] = {
        cmocka_unit_test(every_filter_is_charged),
        cmocka_unit_test(every_test_is_charged),
        cmocka_unit_test(every_method_is_charged),
        cmocka_unit_test(every_function_is_charged),
        cmocka_unit_test(every_form_is_charged),
        cmocka_unit_test(hostile_work_ends),
        cmocka_unit_test(long_conversations_are_rendered),
        cmocka_unit_test(parsing_is_linear),
    };
    variables = large_variables();
    int failed = cmocka_run_group_tests(all, NULL, NULL);
    json_decref(variables);
    return failed;
}
