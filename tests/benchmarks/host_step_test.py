from benchmarks import host_step


def test_a_host_makes_its_own_shards(capsys):
  host_step.main(['--smoke'])
  header, row = capsys.readouterr().out.splitlines()[-3:-1]
  found = dict(zip(header.split(), row.split(), strict=True))
  assert found['case'] == 'ranking/8'
  # 39 columns, a label, a weight and a group of 4 x 64 examples, at least.
  assert float(found['batch_mb']) >= 42 * 4 * 256 / 1e6


def test_a_pretended_mesh_has_hosts_of_four():
  mesh = host_step.pretend_mesh(12)
  assert [d.process_index for d in mesh.devices] == sorted(4 * [0, 1, 2])
