/* Tests of the interpreter of chat templates: constructs one by one, each with the text that jinja2 3.1 gives with the
 * settings of transformers; what is refused, with its line; and the limits that hostile templates run into. */
#include "support/files.h"

#include "base/error.h"
#include "base/scope.h"
#include "jinja/template.h"
#include "support/mentions.h"

static const char variables[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \" \\u00e9t\\u00e9 \"}, {\"role\": \"assistant\", \"content\": \"b\"}], \"none\": "
    "null, "
    "\"list\": [3, 1, 2], \"dict\": {\"b\": 1.0, \"A\": [true, null, \"it's\"], \"items\": 1e-7}, \"big\": 12345678901234567890.0}";

static bool render(const char *source, ChatText *text, Error *error) {
    json_auto_t *object = json_loads(variables, 0, NULL);
    assert_non_null(object);
    *error = (Error){0};
    ChatTemplate *template = chat_template_parse(source, strlen(source), "t", error);
    bool good = template && chat_template_render(template, object, 0, text, error);
    chat_template_free(template);
    return good;
}

static void assert_renders(const char *source, const char *expected) {
    SCOPED(chat_text_free) ChatText text = {0};
    Error error;
    if (!render(source, &text, &error)) fail_msg("%s: %s", source, error.message);
    if (strcmp(text.bytes, expected) != 0) fail_msg("%s gives \"%s\" and not \"%s\"", source, text.bytes, expected);
}

static void assert_refused(const char *source, ErrorCode code, const char *part) {
    SCOPED(chat_text_free) ChatText text = {0};
    Error error;
    if (render(source, &text, &error)) fail_msg("%s gives \"%s\"", source, text.bytes);
    if (error.code != code || !mentions(error.message, part))
        fail_msg("%s: \"%s\" (%d) lacks \"%s\"", source, error.message, error.code, part);
}

static void white_space_is_trimmed(void **state) {
    (void)state;
    assert_renders("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc");
    assert_renders("a  {%- if true -%}  b  {%- endif %}  c", "ab  c");
    assert_renders("a\n  {%+ if true +%}\nb{% endif %}", "a\n  \nb");
    assert_renders("  {{ 1 }}\n  {# c #}\nd\n\n", "  1\nd\n");
    assert_renders("a\r\nb\rc", "a\nb\nc");
    assert_renders("{{- ' a ' -}}  b", " a b");
}

static void expressions_have_pythons_precedence(void **state) {
    (void)state;
    assert_renders("{{ 1 + 2 * 3 }} {{ -2 ** 2 }} {{ not 1 == 2 }} {{ 7 // -2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 'a' + 'b' ~ 1 }} {{ 1 < 2 < 2 "
                   "}} {{ 1 if 0 else 2 if 1 }} {{ -1 | abs }}",
        "7 4 True -4 2 3.5 ab1 False 2 1");
}

static void values_print_as_in_python(void **state) {
    (void)state;
    assert_renders("{{ dict }}", "{'b': 1.0, 'A': [True, None, \"it's\"], 'items': 1e-07}");
    assert_renders("{{ none }}|{{ 0.1 + 0.2 }}|{{ big }}|{{ 1.5 if false }}|{{ (1,) }}|{{ 'a' 'b' }}",
        "None|0.30000000000000004|1.2345678901234567e+19||(1,)|ab");
    assert_renders("{{ dict | tojson }}", "{\"b\": 1.0, \"A\": [true, null, \"it's\"], \"items\": 1e-07}");
    assert_renders("{{ [1, {}, []] | tojson(indent=2) }}", "[\n  1,\n  {},\n  []\n]");
    assert_renders("{{ messages[0].content | tojson(ensure_ascii=true) }}", "\" \\u00e9t\\u00e9 \"");
    assert_renders("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", "{\"a\":2,\"b\":1}");
}

static void texts_are_cut_by_characters(void **state) {
    (void)state;
    assert_renders("{{ messages[0].content[1] }}{{ messages[0].content[::-1] }}{{ messages[0].content | length }}", "é été 5");
    assert_renders("{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}",
        "['a', 'b', '', 'c']['a', 'b']['a', 'b,c']['a,b', 'c']");
    assert_renders("[{{ '\\u00a0\\n x \\u2003' | trim }}][{{ 'xxaxx'.strip('x') }}][{{ 'ab'.replace('', '-') }}]", "[x][a][-a-b-]");
    assert_renders("{{ \"they're bill's\" | title }}{{ \"they're\".title() }}{{ 'aB'.capitalize() }}", "They're Bill'sThey'ReAb");
    assert_renders("{{ 'abc'.startswith(('x', 'a')) }}{{ 'b' in 'abc' }}{{ 'abc'.find('c') }}", "TrueTrue2");
}

static void members_come_before_keys_with_a_dot(void **state) {
    (void)state;
    assert_renders(
        "{{ dict['items'] }} {{ dict.items() | list | length }} {{ dict.get('x', 5) }} {{ dict.x is defined }}", "1e-07 3 5 False");
    assert_renders("{{ messages[5] is defined }}{{ messages[-1].role }}{{ list[1:][0] }}{{ list.0 }}", "Falseassistant13");
}

static void names_live_in_their_block(void **state) {
    (void)state;
    assert_renders("{% set x = 1 %}{% for i in list %}{% set x = i %}{% endfor %}{{ x }}", "1");
    assert_renders("{% set n = namespace(x=1) %}{% for i in list %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}", "7");
    assert_renders("{% if true %}{% set y = 2 %}{% endif %}{{ y }}{% set a, b = [1, 2] %}{{ b }}", "22");
    assert_renders("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.last }}{% else %}no{% endfor %}", "a1True");
    assert_renders(
        "{% for i in list if i > 1 %}{{ loop.index }}{{ i }}{% endfor %}{% for i in [] %}{% else %}none{% endfor %}", "1322none");
    assert_renders("{% macro m(a, b=a) %}{{ a ~ b }}{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}", "1112");
    assert_renders("{% set t %} x {% endset %}[{{ t }}]", "[ x ]");
}

static void filters_of_lists_give_generators(void **state) {
    (void)state;
    assert_renders("{{ (list | select('gt', 9)) is iterable }}{{ 'yes' if list | select('gt', 9) else 'no' }}", "Trueyes");
    assert_renders("{{ list | map('string') | join('+') }}{{ messages | map(attribute='role') | list }}", "3+1+2['user', 'assistant']");
    assert_renders("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ list | sort }}{{ dict | dictsort | first }}",
        "1[1, 2, 3]('A', [True, None, \"it's\"])");
    assert_refused("{{ list | map('string') | length }}", ERROR_DATA, "a generator has no length");
}

/* The expected texts are those of jinja2 and markupsafe 3. */
static void text_beside_safe_text_is_escaped(void **state) {
    (void)state;
    assert_renders("{{ '<a>&' + ('\"<b>\"' | safe) + \"'c'\" }}", "&lt;a&gt;&amp;\"<b>\"&#39;c&#39;");
    assert_renders("{{ (('<' | safe) + '<') ~ '<' }}", "<&lt;<");
    assert_renders("{{ ('<a' | safe)[1:] + '<' }}{{ ('<a' | safe)[0] + '<' }}", "a&lt;<&lt;");
    assert_renders("{{ (' <a ' | safe | trim | upper) + '<' }}{{ ('<A' | safe | lower) + '<' }}", "<A&lt;<a&lt;");
    assert_renders("{{ ('<a' | safe | replace('a', 'b')) + '<' }}{{ ('<' | safe | title) + '<' }}", "<b<<<");
    assert_renders(
        "{{ ('<a' | safe | reverse) + '<' }}{{ ('<a<' | safe | last) + '<' }}{{ ('<a<' | safe | first) + '<' }}", "a<&lt;<&lt;<<");
    assert_renders("{{ ('<' | safe) * 2 + '<' }}{{ ('<' | safe | string) + '<' }}", "<<&lt;<&lt;");
    assert_renders("{% set x %}{{ '<' | safe }}{% endset %}{{ x + '<' }}{{ ['<' | safe, '<'] | join('<') + '<' }}", "<<<<<<");
    assert_refused("{{ ('<' | safe) + 1 }}", ERROR_DATA, "string + int");
}

static void generation_is_marked(void **state) {
    (void)state;
    SCOPED(chat_text_free) ChatText text = {0};
    Error error;
    assert_true(render("{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}.{% endfor %}", &text, &error));
    assert_string_equal(text.bytes, "user.assistant.");
    assert_int_equal(text.marked_count, 2);
    assert_int_equal(text.marked[1].start, 5);
    assert_int_equal(text.marked[1].end, 14);
}

static void what_is_not_known_is_refused_with_its_line(void **state) {
    (void)state;
    assert_refused("a\n{% include 'x' %}", ERROR_USAGE, "t, line 2: statement 'include'");
    assert_refused("\n\n{{ 1 | shuffle }}", ERROR_USAGE, "t, line 3: filter 'shuffle'");
    assert_refused("{{ 1 is prime }}", ERROR_USAGE, "supported test");
    assert_refused("{% if 1 %}", ERROR_USAGE, "end previous block");
    assert_refused("{{ 'a' ", ERROR_USAGE, "tag not closed");
    assert_refused("{{ 'a }}", ERROR_USAGE, "string");
    assert_refused("{# a", ERROR_USAGE, "a comment");
    assert_refused("{{ 1 + }}", ERROR_USAGE, "expression, }}");
    assert_refused("{{ 'a'.encode() }}", ERROR_USAGE, "method encode string not supported");
    assert_refused("{{ 'é' | upper }}", ERROR_USAGE, "ASCII");
    assert_refused("{{ ('a' | safe).strip() }}", ERROR_USAGE, "safe");
    assert_refused("{% break %}", ERROR_USAGE, "expected");
    assert_refused("\xff", ERROR_USAGE, "not UTF-8");
}

static void what_python_refuses_is_refused(void **state) {
    (void)state;
    assert_refused("{{ x.y }}", ERROR_DATA, "'x' is undefined");
    assert_refused("{{ x + 'a' }}", ERROR_DATA, "'x' is undefined");
    assert_refused("{{ 'a' + 1 }}", ERROR_DATA, "string + int");
    assert_refused("{{ none | length }}", ERROR_DATA, "None has no length");
    assert_refused("{% for i in 5 %}{% endfor %}", ERROR_DATA, "iterated");
    assert_refused("{{ 1 // 0 }}", ERROR_DATA, "division");
    assert_refused("{{ 'a' < 1 }}", ERROR_DATA, "string int compared");
    assert_refused("{{ list.append(1) }}", ERROR_USAGE, "append");
    assert_refused("\n{{ raise_exception('so not') }}", ERROR_DATA, "t, line 2: template rejects so not");
}

static void hostile_templates_end(void **state) {
    (void)state;
    char deep[4001];
    memset(deep, '(', sizeof deep);
    memcpy(deep, "{{", 2);
    deep[4000] = '\0';
    assert_refused(deep, ERROR_USAGE, "more than");
    assert_refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", ERROR_DATA, "levels");
    assert_refused("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", ERROR_DATA, "template");
    assert_refused("{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' * 19000000 }}", ERROR_DATA, "MiB");
    assert_refused(
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}", ERROR_DATA, "t, line 1");
    assert_refused("{{ range(100001) | list }}", ERROR_DATA, "limited");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(white_space_is_trimmed),
        cmocka_unit_test(expressions_have_pythons_precedence),
        cmocka_unit_test(values_print_as_in_python),
        cmocka_unit_test(texts_are_cut_by_characters),
        cmocka_unit_test(members_come_before_keys_with_a_dot),
        cmocka_unit_test(names_live_in_their_block),
        cmocka_unit_test(filters_of_lists_give_generators),
        cmocka_unit_test(text_beside_safe_text_is_escaped),
        cmocka_unit_test(generation_is_marked),
        cmocka_unit_test(what_is_not_known_is_refused_with_its_line),
        cmocka_unit_test(what_python_refuses_is_refused),
        cmocka_unit_test(hostile_templates_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
