/* Draws a frame from top to bottom: head, chart, figures, events, as space permits. Called by
 * `smelt watch terminal=true`. */
#include "report/terminal.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "report/page_internal.h"
#include "run/console.h"

enum { LABEL = 9 /* columns left of the chart */, LEAST_CHART = 5, MOST_CHART = 24, TEXT = 512, EVENTS = 64, CELLS = 10, CELL = 96 };

/* Select Graphic Rendition parameters. */
#define BOLD "1"
#define SOFT "2"
#define RED "31"
#define TRAINING "36"
#define VALIDATION "33"

static const char *const run_colors[REPORT_RUNS] = {"36", "33", "32", "35", "93", "31", "94", "37"};

typedef struct Frame {
    FILE *out;
    int columns, rows;
    int column, row; /* position of the next character */
    bool color;
} Frame;

/* -- Text ---------------------------------------------------------------------------------------------------------- */

/* Reads one character of untrusted text; anything that a terminal could interpret becomes a
 * question mark. Returns its bytes. */
static int decode_character(const char *text, int32_t *code) {
    utf8proc_ssize_t bytes = utf8proc_iterate((const uint8_t *)text, -1, code);
    if (bytes <= 0) {
        *code = 0xFFFD;
        return 1;
    }
    utf8proc_category_t category = utf8proc_category(*code);
    bool obeyed = (category >= UTF8PROC_CATEGORY_ZL && category <= UTF8PROC_CATEGORY_CO) || category == UTF8PROC_CATEGORY_CN;
    if (obeyed) *code = '?';
    return (int)bytes;
}

static void put_character(Frame *frame, int32_t code) {
    uint8_t bytes[4];
    int width = utf8proc_charwidth(code);
    if (frame->row >= frame->rows || frame->column + width > frame->columns) return;
    fwrite(bytes, 1, (size_t)utf8proc_encode_char(code, bytes), frame->out);
    frame->column += width;
}

/* Prints as much of the text as fits in the row. */
static void put_styled(Frame *frame, const char *style, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void put_styled(Frame *frame, const char *style, const char *format, ...) {
    char text[TEXT];
    int32_t code;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    bool styled = frame->color && *style;
    if (styled) fprintf(frame->out, "\x1b[%sm", style);
    for (const char *at = text; *at;) {
        at += decode_character(at, &code);
        put_character(frame, code);
    }
    if (styled) fputs("\x1b[0m", frame->out);
}

static void go_to(Frame *frame, int column) {
    for (int left = column - frame->column; left > 0; left--) put_character(frame, ' ');
}

static int text_columns(const char *text) {
    int columns = 0;
    for (int32_t code; *text; columns += utf8proc_charwidth(code)) text += decode_character(text, &code);
    return columns;
}

static void put_right(Frame *frame, const char *style, const char *text) {
    int from = frame->columns - text_columns(text);
    if (from < frame->column + 2) return;
    go_to(frame, from);
    put_styled(frame, style, "%s", text);
}

static bool has_room(const Frame *frame) { return frame->row < frame->rows; }

static void next_row(Frame *frame) {
    if (++frame->row < frame->rows) putc('\n', frame->out);
    frame->column = 0;
}

/* -- The chart ----------------------------------------------------------------------------------------------------- */

/* Cells of 2 x 4 dots. */
typedef struct Canvas {
    int columns, rows;
    uint8_t *dots;      /* [rows, columns]: bits of U+2800 */
    const char **style; /* [rows, columns]: style of the curve that was drawn last */
    bool *marked;       /* has an evaluation */
} Canvas;

static void canvas_free(Canvas *canvas) {
    free(canvas->dots);
    free((void *)canvas->style);
    free(canvas->marked);
}

static Canvas canvas_make(int columns, int rows) {
    const size_t cells = (size_t)columns * (size_t)rows;
    return (Canvas){columns, rows, memory_allocate(cells), memory_allocate(cells * sizeof(char *)), memory_allocate(cells * sizeof(bool))};
}

/* x counts dots from the left, y from the top. */
static void set_dot(Canvas *canvas, int x, int y, const char *style) {
    static const uint8_t bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    if (x < 0 || y < 0 || x >= 2 * canvas->columns || y >= 4 * canvas->rows) return;
    size_t cell = (size_t)(y / 4) * (size_t)canvas->columns + (size_t)(x / 2);
    canvas->dots[cell] |= bits[y % 4][x % 2];
    canvas->style[cell] = style;
}

static int dot_x(const Canvas *canvas, const Axis *axis, double value) {
    return (int)lround(axis_place(axis, value) * (2 * canvas->columns - 1));
}
static int dot_y(const Canvas *canvas, const Axis *axis, double value) {
    return (int)lround((1 - axis_place(axis, value)) * (4 * canvas->rows - 1));
}

static void draw_segment(Canvas *canvas, int x0, int y0, int x1, int y1, const char *style) {
    int steps = abs(x1 - x0) > abs(y1 - y0) ? abs(x1 - x0) : abs(y1 - y0);
    for (int i = 0; i <= steps; i++) {
        double part = steps ? (double)i / steps : 0;
        set_dot(canvas, x0 + (int)lround(part * (x1 - x0)), y0 + (int)lround(part * (y1 - y0)), style);
    }
}

static void draw_line(Canvas *canvas, const Chart *chart, const Line *line, const char *style) {
    bool before = false;
    for (size_t i = 0; i < line->count; i++) {
        bool finite = isfinite(line->soft[i]);
        if (finite) {
            int x = dot_x(canvas, &chart->x, line->x[i]), y = dot_y(canvas, &chart->y, line->soft[i]);
            int x0 = before ? dot_x(canvas, &chart->x, line->x[i - 1]) : x, y0 = before ? dot_y(canvas, &chart->y, line->soft[i - 1]) : y;
            draw_segment(canvas, x0, y0, x, y, style);
        }
        before = finite;
    }
}

static void draw_evaluation_marks(Canvas *canvas, const Plot *plot) {
    const History *history = plot->page->views->history;
    for (size_t i = 0; i < history->evaluations.thin.count; i++) {
        const Mark *mark = &history->evaluations.items[i];
        if (!isfinite(mark->value) || mark->value > plot->chart.y.high) continue;
        int x = dot_x(canvas, &plot->chart.x, plot_x(plot, history, mark->step)) / 2, y = dot_y(canvas, &plot->chart.y, mark->value) / 4;
        if (x >= 0 && x < canvas->columns && y >= 0 && y < canvas->rows) canvas->marked[y * canvas->columns + x] = true;
    }
}

static void put_y_label(Frame *frame, const Canvas *canvas, const Axis *axis, int row) {
    char text[32];
    for (int i = 0; i < axis->count; i++) {
        if (dot_y(canvas, axis, axis->ticks[i]) / 4 != row) continue;
        chart_number(axis->ticks[i], 4, text);
        go_to(frame, LABEL - 2 - (int)strlen(text));
        put_styled(frame, SOFT, "%s", text);
        break;
    }
    go_to(frame, LABEL - 1);
    put_styled(frame, SOFT, "\xE2\x94\x82");
}

static void put_x_labels(Frame *frame, const Canvas *canvas, const Chart *chart) {
    char text[48], title[48];
    snprintf(title, sizeof title, "%s", chart->x_title);
    const int end = frame->columns - (int)strlen(title) - 1;
    for (int i = 0; i < chart->x.count; i++) {
        chart_number(chart->x.ticks[i], 4, text);
        int from = LABEL + dot_x(canvas, &chart->x, chart->x.ticks[i]) / 2 - (int)strlen(text) / 2;
        if (from <= frame->column || from + (int)strlen(text) >= end) continue;
        go_to(frame, from);
        put_styled(frame, SOFT, "%s", text);
    }
    go_to(frame, end + 1);
    put_styled(frame, SOFT, "%s", title);
}

static void put_canvas(Frame *frame, const Canvas *canvas, const Chart *chart) {
    for (int row = 0; row < canvas->rows; row++) {
        put_y_label(frame, canvas, &chart->y, row);
        for (int column = 0; column < canvas->columns; column++) {
            const int cell = row * canvas->columns + column;
            if (canvas->marked[cell]) put_styled(frame, VALIDATION, "\xE2\x97\x8F");
            else if (canvas->dots[cell])
                put_styled(frame, canvas->style[cell], "\xE2%c%c", 0xA0 + (canvas->dots[cell] >> 6), 0x80 + (canvas->dots[cell] & 0x3F));
            else put_character(frame, ' ');
        }
        next_row(frame);
    }
    put_x_labels(frame, canvas, chart);
    next_row(frame);
}

static void chart_title(Frame *frame, const Plot *plot) {
    const Page *page = plot->page;
    put_styled(frame, "", " %s", plot->chart.y_title);
    if (page->count > 1) {
        for (int i = 0; i < page->count; i++) put_styled(frame, run_colors[i], "  \xE2\x94\x81 %s", page->views[i].name);
    } else {
        put_styled(frame, TRAINING, "  \xE2\x94\x81 training%s", plot->lines->smoothed ? ", smoothed" : "");
        if (page->views->history->evaluations.thin.seen > 0) put_styled(frame, VALIDATION, "  \xE2\x97\x8F validation");
    }
    next_row(frame);
}

/* `rows` includes the title and the labels of the x axis. */
static void put_chart(Frame *frame, const Page *page, int rows) {
    SCOPED(plot_free) Plot plot = plot_make(page, &curve_loss);
    SCOPED(canvas_free) Canvas canvas = canvas_make(frame->columns - LABEL, rows - 2);
    for (int i = 0; i < page->count; i++) draw_line(&canvas, &plot.chart, &plot.lines[i], page->count > 1 ? run_colors[i] : TRAINING);
    if (page->count == 1) draw_evaluation_marks(&canvas, &plot);
    chart_title(frame, &plot);
    put_canvas(frame, &canvas, &plot.chart);
}

/* -- Figures ------------------------------------------------------------------------------------------------------- */

static double last_of(const History *history, StepField name) {
    return history->thin.count ? span_mean(&history->points[history->thin.count - 1].series[name]) : NAN;
}

static void evaluation_text(const History *history, const Mark *mark, char text[CELL]) {
    char loss[32];
    page_loss(mark->value, loss);
    bool known = history->evaluations.thin.seen > 0 && isfinite(mark->value);
    snprintf(text, CELL, known ? "%s at step %lld" : "none yet", loss, (long long)mark->step);
}

typedef struct Cell {
    const char *name;
    char text[CELL];
} Cell;

static void fill_run_cells(const RunView *view, Cell cells[CELLS]) {
    const History *history = view->history;
    const RunStart *start = page_last_start(history);
    int64_t steps;
    char number[32];
    static const char *const names[CELLS] = {
        "loss", "speed", "validation", "tokens", "best", "time", "grad norm", "memory", "lr", "parameters"};
    for (int i = 0; i < CELLS; i++) cells[i].name = names[i];
    page_loss(history_recent_loss(history, &steps), number);
    if (steps > 0) snprintf(cells[0].text, CELL, "%s, mean of %lld step%s", number, (long long)steps, steps == 1 ? "" : "s");
    else snprintf(cells[0].text, CELL, "none yet");
    chart_number(sample_median(&history->speed), 4, number);
    snprintf(cells[1].text, CELL, "%s tok/s, median", number);
    evaluation_text(history, &history->evaluations.last, cells[2].text);
    chart_number(history->tokens > 0 ? history->tokens : NAN, 4, cells[3].text);
    evaluation_text(history, &history->best, cells[4].text);
    log_format_duration(history->step_seconds, number);
    snprintf(cells[5].text, CELL, "%s in steps", number);
    chart_number(last_of(history, SERIES_NORM), 4, cells[6].text);
    log_format_bytes(history->memory_bytes > 0 ? history->memory_bytes : NAN, cells[7].text);
    chart_number(last_of(history, SERIES_LR), 4, cells[8].text);
    chart_number(start ? start->parameters : NAN, 4, cells[9].text);
}

/* Prints the figures, in two columns if there is room. */
static void put_figures(Frame *frame, const RunView *view) {
    enum { NAME = 12, WIDE = 76 };
    Cell cells[CELLS];
    const int across = frame->columns >= WIDE ? 2 : 1;
    fill_run_cells(view, cells);
    for (int i = 0; i < CELLS && has_room(frame); i += across) {
        for (int j = 0; j < across; j++) {
            go_to(frame, 1 + j * frame->columns / 2);
            put_styled(frame, SOFT, "%s", cells[i + j].name);
            go_to(frame, 1 + j * frame->columns / 2 + NAME);
            put_styled(frame, "", "%s", cells[i + j].text);
        }
        next_row(frame);
    }
}

static void put_runs(Frame *frame, const Page *page) {
    static const char *const heads[] = {"loss", "validation", "best", "tok/s", "step", "state"};
    enum { WIDTH = 11, COUNT = sizeof heads / sizeof *heads };
    const int name = frame->columns - COUNT * WIDTH > 12 ? frame->columns - COUNT * WIDTH : 12;
    for (int i = 0; i < COUNT; i++) {
        go_to(frame, name + i * WIDTH);
        put_styled(frame, SOFT, "%*s", WIDTH, heads[i]);
    }
    next_row(frame);
    for (int i = 0; i < page->count && has_room(frame); i++) {
        const History *history = page->views[i].history;
        int64_t steps;
        char texts[COUNT][32];
        Frame part = *frame;
        page_loss(history_recent_loss(history, &steps), texts[0]);
        page_loss(history->evaluations.thin.seen ? history->evaluations.last.value : NAN, texts[1]);
        page_loss(history->best.value, texts[2]);
        chart_number(sample_median(&history->speed), 4, texts[3]);
        snprintf(texts[4], sizeof texts[4], "%lld", (long long)history->last_step);
        snprintf(texts[5], sizeof texts[5], "%s", run_status_name(page->views[i].state.status));
        part.columns = name < frame->columns ? name : frame->columns;
        put_styled(&part, run_colors[i], " %s", page->views[i].name);
        frame->column = part.column;
        for (int j = 0; j < COUNT; j++) {
            go_to(frame, name + j * WIDTH);
            put_styled(frame, "", "%*s", WIDTH, strcmp(texts[j], "not finite") == 0 ? "none" : texts[j]);
        }
        next_row(frame);
    }
}

/* -- Events -------------------------------------------------------------------------------------------------------- */

typedef struct RunEvent {
    int64_t step;
    const char *style;
    char text[512];
} RunEvent;

typedef struct Events {
    RunEvent items[EVENTS];
    int count;
} Events;

static void add_event(Events *events, int64_t step, const char *style, const char *format, ...) __attribute__((format(printf, 4, 5)));
static void add_event(Events *events, int64_t step, const char *style, const char *format, ...) {
    va_list arguments;
    if (events->count == EVENTS) return;
    RunEvent *event = &events->items[events->count++];
    *event = (RunEvent){step, style, ""};
    va_start(arguments, format);
    vsnprintf(event->text, sizeof event->text, format, arguments);
    va_end(arguments);
}

static void add_marks(Events *events, const Marks *marks, const char *what) {
    enum { NEWEST = 8 };
    for (size_t i = marks->thin.count > NEWEST ? marks->thin.count - NEWEST : 0; i < marks->thin.count; i++)
        add_event(events, marks->items[i].step, RED, "%s", what);
}

static int newer_first(const void *a, const void *b) {
    int64_t x = ((const RunEvent *)a)->step, y = ((const RunEvent *)b)->step;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void collect_events(const History *history, Events *events) {
    enum { NEWEST = 8 };
    const Marks *evaluations = &history->evaluations, *checkpoints = &history->checkpoints;
    for (size_t i = evaluations->thin.count > NEWEST ? evaluations->thin.count - NEWEST : 0; i < evaluations->thin.count; i++) {
        char loss[32];
        page_loss(evaluations->items[i].value, loss);
        add_event(events, evaluations->items[i].step, VALIDATION, "validation loss %s", loss);
    }
    for (size_t i = checkpoints->thin.count > NEWEST ? checkpoints->thin.count - NEWEST : 0; i < checkpoints->thin.count; i++) {
        char bytes[32];
        log_format_bytes(checkpoints->items[i].value, bytes);
        add_event(events, checkpoints->items[i].step, "", "checkpoint, %s", bytes);
    }
    for (int64_t i = history->start_count > NEWEST ? history->start_count - NEWEST : 0; i < history->start_count; i++) {
        const RunStart *start = &history->starts[i % HISTORY_STARTS];
        add_event(events, start->step, SOFT, "process %lld started", (long long)i + 1);
    }
    if (history->excerpts.thin.seen > 0) {
        char shown[4 * 100 + 4];
        console_shorten(history->excerpts.last.text, 100, shown);
        add_event(events, history->excerpts.last.step, VALIDATION, "sample: %s", shown);
    }
    add_marks(events, &history->skipped, "the update was skipped");
    add_marks(events, &history->broken, "the loss was not finite");
    qsort(events->items, (size_t)events->count, sizeof *events->items, newer_first);
}

static void put_events(Frame *frame, const History *history) {
    Events *events = memory_allocate(sizeof *events);
    collect_events(history, events);
    for (int i = 0; i < events->count && frame->row < frame->rows - 1; i++) {
        put_styled(frame, SOFT, " step %-8lld", (long long)events->items[i].step);
        put_styled(frame, events->items[i].style, "%s", events->items[i].text);
        next_row(frame);
    }
    free(events);
}

/* -- The frame ----------------------------------------------------------------------------------------------------- */

static const char *status_style(RunStatus status) {
    static const char *const styles[RUN_STATUS_COUNT] = {[RUN_IS_SILENT] = RED, [RUN_IS_FAILED] = RED, [RUN_IS_STOPPED] = RED};
    return styles[status] ? styles[status] : "";
}

/* Prints the state to the right of the name, or in a row of its own. */
static void put_state(Frame *frame, const RunView *view) {
    char state_text[RUN_STATE_TEXT + 2];
    const char *style = status_style(view->state.status);
    snprintf(state_text, sizeof state_text, "%s ", view->state_text);
    if (text_columns(state_text) + frame->column + 2 <= frame->columns) {
        put_right(frame, style, state_text);
    } else {
        next_row(frame);
        put_styled(frame, style, " %s", view->state_text);
    }
    next_row(frame);
}

static void put_head(Frame *frame, const Page *page) {
    const RunView *view = page->views;
    const bool known = view_knows_settings(view);
    if (page->count > 1) {
        put_styled(frame, BOLD, " %d runs", page->count);
        next_row(frame);
        return;
    }
    put_styled(frame, BOLD, " %s", view->name);
    put_state(frame, view);
    const double part = known ? (double)view->state.step / (double)view->settings.steps : 0;
    const int whole = frame->columns - 2, done = (int)(whole * part);
    go_to(frame, 1);
    for (int i = 0; i < whole && known; i++) put_styled(frame, i < done ? TRAINING : SOFT, i < done ? "\xE2\x94\x81" : "\xE2\x94\x80");
    next_row(frame);
}

static void put_foot(Frame *frame, const Report *report) {
    const Error *trouble = report_trouble(report);
    while (frame->row < frame->rows - 1) next_row(frame);
    if (!has_room(frame)) return;
    if (trouble) put_styled(frame, RED, " %s", trouble->message);
    else put_styled(frame, SOFT, " q ends");
}

char *terminal_frame(const Report *report, int columns, int rows, bool color) {
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (!out) memory_refused(0);
    Frame frame = {.out = out, .columns = columns, .rows = rows, .color = color};
    const Page page = report_page(report, NULL);
    const int figures = page.count > 1 ? page.count + 1 : columns >= 76 ? CELLS / 2 : CELLS;
    put_head(&frame, &page);
    int left = rows - frame.row - figures - 2, events = page.count > 1 ? 0 : left / 4;
    int chart = left - events < MOST_CHART ? left - events : MOST_CHART;
    if (chart >= LEAST_CHART && columns > 3 * LABEL) {
        put_chart(&frame, &page, chart);
        next_row(&frame);
    }
    if (page.count > 1) put_runs(&frame, &page);
    else put_figures(&frame, page.views);
    if (page.count == 1) put_events(&frame, page.views->history);
    put_foot(&frame, report);
    fclose(out);
    return text;
}
