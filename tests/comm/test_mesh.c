/* Coordinates of ranks in a mesh and how reports speak of them. Groups that ranks open are tested with what uses them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "comm/mesh.h"

/* dp 2 (as two replicas), pp 2, tp 4 of which 2 copy key heads. */
static Mesh mesh_of(int rank) {
    Mesh mesh = mesh_alone;
    mesh.size[AXIS_REPLICA] = mesh.size[AXIS_PP] = mesh.size[AXIS_TP] = mesh.size[AXIS_COPY] = 2;
    mesh_place(&mesh, rank);
    return mesh;
}

static void ranks_are_numbered_with_tp_nearest(void **state) {
    (void)state;
    for (int rank = 0; rank < 16; rank++) {
        Mesh mesh = mesh_of(rank);
        assert_int_equal(mesh_rank(&mesh), rank);
        assert_int_equal(mesh_index(&mesh, AXES_TENSOR), rank % 4);
        assert_int_equal(mesh.at[AXIS_PP], rank / 4 % 2);
        assert_int_equal(mesh.at[AXIS_REPLICA], rank / 8);
    }
}

static void reports_name_ranks_by_the_users_axes(void **state) {
    (void)state;
    char text[96];
    Mesh mesh = mesh_of(0), alone = mesh_alone;
    mesh_describe_rank(&mesh, 14, text, sizeof text);
    assert_string_equal(text, "rank 14 (dp 1, pp 1, tp 2)");
    alone.size[AXIS_DP] = 4;
    mesh_describe_rank(&alone, 3, text, sizeof text);
    assert_string_equal(text, "rank 3");
    assert_int_equal(mesh_copy_ranks(&mesh), 8);
    assert_int_equal(mesh_copy_ranks(&alone), 1);
}

static void a_groups_name_tells_its_ranks(void **state) {
    (void)state;
    Mesh mesh = mesh_of(6);
    assert_int_equal(mesh_find_axes(&mesh, "tp.copy"), AXES_TENSOR);
    assert_int_equal(mesh_find_axes(&mesh, "replica.pp"), MESH(AXIS_REPLICA) | MESH(AXIS_PP));
    assert_int_equal(mesh_find_axes(&mesh, "all"), AXES_ALL);
    assert_int_equal(mesh_find_axes(&mesh, "inner.tp.copy"), AXES_TENSOR | MESH_INNER);
    for (int rank = 0; rank < 16; rank++) {
        assert_int_equal(mesh_has(&mesh, AXES_TENSOR, rank), rank / 4 == 1);
        assert_int_equal(mesh_has(&mesh, AXES_TENSOR | MESH_INNER, rank), rank / 4 == 1);
        assert_int_equal(mesh_has(&mesh, MESH(AXIS_PP), rank), rank == 2 || rank == 6);
        assert_true(mesh_has(&mesh, AXES_ALL, rank));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_numbered_with_tp_nearest),
        cmocka_unit_test(reports_name_ranks_by_the_users_axes),
        cmocka_unit_test(a_groups_name_tells_its_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
